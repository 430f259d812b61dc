"""A hook that is a program: told as JSON on its stdin what happens, it says on its stdout what is to be otherwise.

It ends with 0, and says nothing, or one of {"deny": REASON}, {"text": TEXT}, {"arguments": {...}}. Whatever else it
does is a failure of the hook, and what it started ends with it.
"""

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nanobot.agent.hooks import (
    AnswerSeen,
    CallSeen,
    Deny,
    Hook,
    MessageSeen,
    NewArguments,
    NewResult,
    NewText,
    RequestSeen,
    ResultSeen,
    TurnSeen,
)
from nanobot.utils.processes import child_process

METHODS = {
    "message": "on_message",
    "request": "on_request",
    "answer": "on_answer",
    "beforeTool": "before_tool",
    "afterTool": "after_tool",
    "turnEnd": "on_turn_end",
}
"""What a program can be told of, and which method of a hook that is."""
_MOST_SAID = 1_000_000


class CommandHookError(Exception):
    """The program failed, or said what it may not. The text says what."""


class CommandHook(Hook):
    """Begins the program anew each time: it keeps nothing between two."""

    def __init__(self, command: Sequence[str], *, folder: Path, env: Mapping[str, str]) -> None:
        """`folder` is where it runs, `env` all that it knows of the environment."""
        self._command = [*command]
        self._folder = folder
        self._env = env

    async def on_message(self, message: MessageSeen) -> Deny | NewText | None:
        """It may deny, or say another `text`."""
        match await self._told("message", message):
            case {"text": str(text)}:
                return NewText(text)
            case said:
                return _deny(said)

    async def on_request(self, request: RequestSeen) -> None:
        """It may look."""
        _nothing(await self._told("request", request))

    async def on_answer(self, answer: AnswerSeen) -> None:
        """It may look."""
        _nothing(await self._told("answer", answer))

    async def before_tool(self, call: CallSeen) -> Deny | NewArguments | None:
        """It may deny, or give other `arguments`."""
        match await self._told("beforeTool", call):
            case {"arguments": dict(arguments)}:
                return NewArguments(arguments)
            case said:
                return _deny(said)

    async def after_tool(self, result: ResultSeen) -> NewResult | None:
        """It may say another `text`."""
        match await self._told("afterTool", result):
            case {"text": str(text)}:
                return NewResult(text)
            case said:
                _nothing(said)
                return None

    async def on_turn_end(self, turn: TurnSeen) -> None:
        """It may look."""
        _nothing(await self._told("turnEnd", turn))

    async def _told(self, event: str, seen: Any) -> Mapping[str, Any]:
        """What it says. A cancel ends it, and all that it started. Raises CommandHookError, OSError."""
        with tempfile.TemporaryFile() as stdin:
            stdin.write(json.dumps({"event": event, **asdict(seen)}, default=str).encode())
            stdin.seek(0)
            async with child_process(self._command, cwd=self._folder, env=self._env, stdin=stdin.fileno()) as child:
                said, aside = await asyncio.gather(_all_of(child.stdout), _all_of(child.stderr))
                code = await child.wait()
        if code != 0:
            last = (aside.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]
            raise CommandHookError(f"it ended with {code}: {last[:200]}")
        try:
            told = json.loads(said) if said.strip() else {}
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            raise CommandHookError(f"it said what is no JSON object: {said[:80]!r}")
        return told


async def _all_of(stream: asyncio.StreamReader) -> bytes:
    """What comes until its end; of too much, the beginning."""
    said = bytearray()
    while piece := await stream.read(65_536):
        said += piece[: max(0, _MOST_SAID - len(said))]
    return bytes(said)


def _deny(said: Mapping[str, Any]) -> Deny | None:
    if isinstance(reason := said.get("deny"), str):
        return Deny(reason)
    _nothing(said)
    return None


def _nothing(said: Mapping[str, Any]) -> None:
    if said:
        raise CommandHookError(f"it said {', '.join(sorted(said))[:80]}, which means nothing here")
