"""The guard against loops: a call made again and again, with the same arguments and the same result, leads nowhere.

The third one is answered with advice instead of being run, the fifth ends the turn. Each call is counted by itself
since the run last made progress, so a circle (A, B, A, B...) is seen as what it is: its third round is answered with
advice, its fifth ends the turn.

Progress is a call never made before in this run that may change something and did not fail: then all counts begin
anew. So edit, test, edit, test with the same failing output is honest work; the same edit again is not.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Any

from nanobot.agent.tools.base import Effect, Tool
from nanobot.agent.tools.validation import mended
from nanobot.providers.base import ToolCallRequest

ADVISED_FROM = 3
ENDED_FROM = 5

_SAME_AGAIN = (
    "Not run: this is call number {count} of {name} with the same arguments, and {outcome} each time so far. "
    "That result still stands; it is above. {otherwise} {warning}"
)
_OTHERWISE = "Use what you have, call with other arguments or another tool, or answer and say what is missing."
_AFTER_FAILURES = "Read that error and change something: other arguments, another tool, or say what stands in the way."
_WAITING = "If you are waiting for something, wait inside one command (a loop with `sleep`), or do something else."
_WARNINGS = {ENDED_FROM - 1: "The next one like it ends the turn."}

_VOLATILE = re.compile(
    r"(?<=\bin )\d+\.\d+ ?(?:s|sec|secs|seconds)\b"  # how long tests took; a count-down says whole seconds
    r"|(?<=\btook )\d+\.?\d* ?(?:ms|s|sec|secs|seconds)\b"
    r"|(?<=^real\t)\S+|(?<=^user\t)\S+|(?<=^sys\t)\S+"
    r"|\b0x[0-9a-f]{6,16}\b"
    r"|(?<=/tmp/)tmp[\w.-]{6,}|(?<=/pytest-)\d+\b"
    r"|(?<=[/\\]spill[/\\])[\w-]+(?=\.txt\b)",  # where the whole of a long result is kept
    re.MULTILINE,
)
"""What a repeat changes by itself. Dates and times stay: they may be what was asked for."""
_MOST_LOOKED_THROUGH = 200_000
"""Characters; a longer result must be the same to the letter."""


@dataclass(slots=True)
class _Repeats:
    """One call since the last progress: how often it was asked for, and what came of it."""

    name: str
    asked: int = 0
    result: bytes | None = None
    failed: bool = False


class LoopGuard:
    """The calls of one run. Calls side by side are counted one by one, in the order they were asked for."""

    def __init__(self) -> None:
        self._repeats: dict[str, _Repeats] = {}
        self._made: set[str] = set()

    def before(self, call: ToolCallRequest, tool: Tool | None) -> str | None:
        """Count a call that is about to run. A text is the advice to answer with instead of running it."""
        if _exempt(tool):
            return None
        key = _key(call, tool)
        repeats = self._repeats.setdefault(key, _Repeats(tool.name if tool is not None else call.name))
        repeats.asked += 1
        return None if repeats.asked < ADVISED_FROM else _advice(repeats)

    def foreseen(self, call: ToolCallRequest, tool: Tool | None) -> str | None:
        """The advice that this call will get as things stand, so that nobody is asked about it. It counts nothing."""
        repeats = None if _exempt(tool) else self._repeats.get(_key(call, tool))
        if repeats is None or repeats.asked + 1 < ADVISED_FROM:
            return None
        return _advice(replace(repeats, asked=repeats.asked + 1))

    def after(self, call: ToolCallRequest, tool: Tool | None, result_text: str, *, ok: bool) -> None:
        """Note what came of a call that ran or was refused: not of one that was answered with advice.

        `result_text` is the result as the tool gave it, before it is cut or replaced by a word that it is unchanged.
        """
        if _exempt(tool):
            return
        key = _key(call, tool)
        is_new = key not in self._made
        self._made.add(key)
        if ok and is_new and tool is not None and tool.effect is not Effect.READ:
            self.begin_anew()
        repeats = self._repeats.setdefault(key, _Repeats(tool.name if tool is not None else call.name))
        result = _digest(result_text)
        if repeats.asked == 0 or (repeats.result is not None and repeats.result != result):
            repeats.asked = 1
        repeats.result, repeats.failed = result, not ok

    def begin_anew(self) -> None:
        """Forget all counts: something has changed, or the person has said something."""
        self._repeats.clear()

    @property
    def over(self) -> str | None:
        """Why the turn ends now, in a sentence for the person; None while it may go on. Ask when a step is done."""
        worst = max(self._repeats.values(), key=lambda repeats: repeats.asked, default=None)
        if worst is None or worst.asked < ENDED_FROM:
            return None
        outcome = "the same failure" if worst.failed else "the same result"
        return f"Stopped: {worst.name} was called {worst.asked} times with the same arguments and {outcome}."


def _digest(text: str) -> bytes:
    if len(text) <= _MOST_LOOKED_THROUGH:
        text = _VOLATILE.sub("~", text)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _exempt(tool: Tool | None) -> bool:
    return tool is not None and tool.polls


def _advice(repeats: _Repeats) -> str:
    otherwise = _AFTER_FAILURES if repeats.failed else _OTHERWISE
    if repeats.name == "exec":
        otherwise = f"{otherwise} {_WAITING}"
    return _SAME_AGAIN.format(
        count=repeats.asked,
        name=repeats.name,
        outcome="it failed in the same way" if repeats.failed else "it gave the same result",
        otherwise=otherwise,
        warning=_WARNINGS.get(repeats.asked, ""),
    ).rstrip()


def _key(call: ToolCallRequest, tool: Tool | None) -> str:
    """What makes two calls the same: the tool, and its arguments without what makes no difference."""
    if call.problem is not None:
        return f"{call.name} {call.arguments_text}"
    if tool is None:
        return f"{call.name} {_canonical(call.arguments)}"
    schema = tool.parameters.get("properties", {})
    given = {
        name: trimmed
        for name, value in mended(call.arguments, tool.parameters).items()
        if (trimmed := _trimmed(value)) != _default(schema, name)
    }
    return f"{tool.name} {_canonical(given)}"


_NO_DEFAULT = object()


def _default(schema: Any, name: str) -> object:
    described = schema.get(name) if isinstance(schema, dict) else None
    return described.get("default", _NO_DEFAULT) if isinstance(described, dict) else _NO_DEFAULT


def _trimmed(value: Any) -> Any:
    # Only at the end: what stands at the beginning of a line is meaning in an edit.
    if isinstance(value, str):
        return value.rstrip()
    if isinstance(value, dict):
        return {name: _trimmed(inner) for name, inner in value.items()}
    return [_trimmed(inner) for inner in value] if isinstance(value, list) else value


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
