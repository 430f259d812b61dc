"""A hook that is a program: it reads the event as JSON on stdin and writes its reply as JSON to stdout.

It exits with 0 and prints nothing, or one of {"deny": REASON}, {"text": TEXT}, {"arguments": {...}}. Anything else is a
failure of the hook. Its child processes end with it.
"""

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nanobot.agent.hooks import api
from nanobot.utils.processes import child_process

METHODS = {
    "message": "on_message",
    "request": "on_request",
    "answer": "on_answer",
    "beforeTool": "before_tool",
    "afterTool": "after_tool",
    "turnEnd": "on_turn_end",
}
"""Event names on the wire and in the config, with the hook method of each."""
_MAX_OUTPUT_BYTES = 1_000_000


class CommandHookError(Exception):
    """The program failed or its output is not allowed; the text says which."""


class CommandHook(api.Hook):
    """Runs the program once per event."""

    def __init__(self, command: Sequence[str], *, folder: Path, env: Mapping[str, str]) -> None:
        """`folder` is its working directory, `env` its whole environment."""
        self._command = [*command]
        self._folder = folder
        self._env = env

    async def on_message(self, message: api.MessageSeen) -> api.Deny | api.NewText | None:
        reply: api.Deny | api.NewText | None = await self._run("message", message, text=api.NewText, deny=api.Deny)
        return reply

    async def on_request(self, request: api.RequestSeen) -> None:
        await self._run("request", request)

    async def on_answer(self, answer: api.AnswerSeen) -> None:
        await self._run("answer", answer)

    async def before_tool(self, call: api.CallSeen) -> api.Deny | api.NewArguments | None:
        reply: api.Deny | api.NewArguments | None
        reply = await self._run("beforeTool", call, arguments=api.NewArguments, deny=api.Deny)
        return reply

    async def after_tool(self, result: api.ResultSeen) -> api.NewResult | None:
        reply: api.NewResult | None = await self._run("afterTool", result, text=api.NewResult)
        return reply

    async def on_turn_end(self, turn: api.TurnSeen) -> None:
        await self._run("turnEnd", turn)

    async def _run(self, event: str, seen: Any, **allowed: Callable[[Any], Any]) -> Any:
        """Run the program and return its reply, made by the first of `allowed` that it has; None for an empty one.

        Cancelling kills the program and its children. Raises CommandHookError, OSError.
        """
        with tempfile.TemporaryFile() as stdin:
            stdin.write(json.dumps({"event": event, **asdict(seen)}, default=str).encode())
            stdin.seek(0)
            async with child_process(self._command, cwd=self._folder, env=self._env, stdin=stdin.fileno()) as child:
                stdout, stderr = await asyncio.gather(_read_all(child.stdout), _read_all(child.stderr))
                code = await child.wait()
        if code != 0:
            last = (stderr.decode("utf-8", "replace").strip().splitlines() or ["no error output"])[-1]
            raise CommandHookError(f"it exited with {code}: {last[:200]}")
        try:
            reply = json.loads(stdout) if stdout.strip() else {}
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            raise CommandHookError(f"its output is not a JSON object: {stdout[:80]!r}")
        for name, make in allowed.items():
            if isinstance(value := reply.get(name), dict if name == "arguments" else str):
                return make(value)
        if reply:
            raise CommandHookError(
                f"its output has {', '.join(sorted(reply))[:80]}, which is not allowed for this event"
            )
        return None


async def _read_all(stream: asyncio.StreamReader) -> bytes:
    """Read until the end of the stream, but keep only the first `_MAX_OUTPUT_BYTES`."""
    output = bytearray()
    while chunk := await stream.read(65_536):
        output += chunk[: max(0, _MAX_OUTPUT_BYTES - len(output))]
    return bytes(output)
