"""Loop guard: stops a model that repeats a call with the same arguments and the same result.

The third repetition is answered with advice instead of being run, the fifth ends the turn. Calls are counted one by
one since the last progress, so cycles (A, B, A, B...) are detected too. Progress is a successful call, new in this
run, of a tool that may change something; it resets all counts. So edit, test, edit, test with the same failing output
is no loop; repeating the same edit is.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Any

from nanobot.agent.tools.base import Effect, Tool
from nanobot.agent.tools.validation import repair_arguments
from nanobot.providers.base import ToolCallRequest

ADVISED_FROM = 3
ENDED_FROM = 5

_NOT_RUN = (
    "Not run: this is call number {count} of {name} with the same arguments, and {outcome} each time so far. "
    "That result is still valid; it is above. {otherwise} {warning}"
)
_DEFAULT_ADVICE = "Use what you have, call with other arguments or another tool, or answer and say what is missing."
_FAILURE_ADVICE = "Read that error and change something: other arguments, another tool, or say what prevents it."
_WAITING_ADVICE = (
    "If you are waiting for something, wait inside one command (a loop with `sleep`), or do something else."
)
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
"""Parts of a result that differ in each call. Dates and times are not among them: the call may ask for them."""
_MAX_NORMALIZED_CHARS = 200_000
"""Longer results are compared as they are."""


@dataclass(slots=True)
class _Repeats:
    """The repetitions of one call since the last progress."""

    name: str
    count: int = 0
    running: int = 0
    """Started and not ended; concurrent calls count as one."""
    result: bytes | None = None
    failed: bool = False


class LoopGuard:
    """Counts the calls of one run. Equal concurrent calls count as one: none has seen the result of another."""

    def __init__(self) -> None:
        self._repeats: dict[str, _Repeats] = {}
        self._seen: set[str] = set()

    def before(self, call: ToolCallRequest, tool: Tool | None) -> str | None:
        """Count a call that is about to run. Return the advice to answer with if it must not run."""
        if _is_exempt(tool):
            return None
        key = _key(call, tool)
        repeats = self._repeats.setdefault(key, _Repeats(tool.name if tool is not None else call.name))
        repeats.count += not repeats.running
        if repeats.count >= ADVISED_FROM:
            return _advice(repeats)
        repeats.running += 1
        return None

    def preview(self, call: ToolCallRequest, tool: Tool | None) -> str | None:
        """The advice that `before` would give this call, without counting it: then no approval is requested for it."""
        repeats = None if _is_exempt(tool) else self._repeats.get(_key(call, tool))
        if repeats is None or repeats.count + 1 < ADVISED_FROM:
            return None
        return _advice(replace(repeats, count=repeats.count + 1))

    def after(self, call: ToolCallRequest, tool: Tool | None, result_text: str, *, ok: bool) -> None:
        """Record the result of a call that ran or was refused; not of one that was answered with advice.

        `result_text` is the tool's result before it is clipped or replaced by a stub.
        """
        if _is_exempt(tool):
            return
        key = _key(call, tool)
        is_new = key not in self._seen
        self._seen.add(key)
        if ok and is_new and tool is not None and tool.effect is not Effect.READ:
            self.reset()
        repeats = self._repeats.setdefault(key, _Repeats(tool.name if tool is not None else call.name))
        repeats.running = max(repeats.running - 1, 0)
        text = _VOLATILE.sub("~", result_text) if len(result_text) <= _MAX_NORMALIZED_CHARS else result_text
        result = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if repeats.count == 0 or (repeats.result is not None and repeats.result != result):
            repeats.count = 1
        repeats.result, repeats.failed = result, not ok

    def reset(self) -> None:
        """Reset all counts, after progress or a new message of the person."""
        self._repeats.clear()

    @property
    def stop_message(self) -> str | None:
        """Why the turn must end now, for the person; None if it may continue. Check after each step."""
        worst = max(self._repeats.values(), key=lambda repeats: repeats.count, default=None)
        if worst is None or worst.count < ENDED_FROM:
            return None
        outcome = "the same failure" if worst.failed else "the same result"
        return f"Stopped: {worst.name} was called {worst.count} times with the same arguments and {outcome}."


def _is_exempt(tool: Tool | None) -> bool:
    return tool is not None and tool.polls


def _advice(repeats: _Repeats) -> str:
    otherwise = _FAILURE_ADVICE if repeats.failed else _DEFAULT_ADVICE
    if repeats.name == "exec":
        otherwise = f"{otherwise} {_WAITING_ADVICE}"
    return _NOT_RUN.format(
        count=repeats.count,
        name=repeats.name,
        outcome="it failed in the same way" if repeats.failed else "it gave the same result",
        otherwise=otherwise,
        warning=_WARNINGS.get(repeats.count, ""),
    ).rstrip()


def _key(call: ToolCallRequest, tool: Tool | None) -> str:
    """Identifies a call: the tool and its arguments, without defaults and trailing spaces."""
    if call.problem is not None:
        return f"{call.name} {call.arguments_text}"
    if tool is None:
        return f"{call.name} {_canonical(call.arguments)}"
    schema = tool.parameters.get("properties", {})
    arguments = {
        name: trimmed
        for name, value in repair_arguments(call.arguments, tool.parameters).items()
        if (trimmed := _strip_trailing(value)) != _default(schema, name)
    }
    return f"{tool.name} {_canonical(arguments)}"


_NO_DEFAULT = object()


def _default(schema: Any, name: str) -> object:
    property_schema = schema.get(name) if isinstance(schema, dict) else None
    return property_schema.get("default", _NO_DEFAULT) if isinstance(property_schema, dict) else _NO_DEFAULT


def _strip_trailing(value: Any) -> Any:
    # only at the end: leading spaces have a meaning in an edit
    if isinstance(value, str):
        return value.rstrip()
    if isinstance(value, dict):
        return {name: _strip_trailing(inner) for name, inner in value.items()}
    return [_strip_trailing(inner) for inner in value] if isinstance(value, list) else value


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
