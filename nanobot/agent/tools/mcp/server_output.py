"""Bounds what a server sends before the SDK validates it, which it does part by part on the event loop."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

MAX_LIST_ITEMS = 2000
"""Tools, resources, parts of a result; the rest of a longer list in a message is dropped."""
_MAX_SLICE_S = 0.01
_PAUSE_FACTOR = 3
"""A server that never stops sending gets one part of the event loop's time, and the others this many."""


class CpuShare:
    """Limits how much of the event loop one server may take. Its messages wait in the stream meanwhile."""

    def __init__(self) -> None:
        self._used_s = 0.0

    async def throttle(self, seconds: float) -> None:
        """Account for used time. Returns when the server may use more."""
        self._used_s += seconds
        if self._used_s > _MAX_SLICE_S:
            pause_s, self._used_s = self._used_s * _PAUSE_FACTOR, 0.0
            await asyncio.sleep(pause_s)


def parse_line(line: bytes) -> "SessionMessage | None":
    """Parse a line to a message; None if it is not one. Blocks in proportion to the line's length."""
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return truncate_lists(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))
    except ValueError:
        pass
    try:  # NaN and lone surrogates: Python and JavaScript write them, and they are not JSON
        data = json.loads(line.decode(errors="replace"), parse_constant=lambda _: None)
        return truncate_lists(
            SessionMessage(jsonrpc_message_adapter.validate_python(_replace_surrogates(data), by_name=False))
        )
    except (ValueError, RecursionError):
        return None


def truncate_lists(message: "SessionMessage") -> "SessionMessage":
    """Return the same message with its lists cut to a sensible length."""
    result = getattr(message.message, "result", None)
    if isinstance(result, dict):
        for name, value in result.items():
            if isinstance(value, list) and len(value) > MAX_LIST_ITEMS:
                result[name] = value[:MAX_LIST_ITEMS]
    return message


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_replace_surrogates(name): _replace_surrogates(inner) for name, inner in value.items()}
    return [_replace_surrogates(inner) for inner in value] if isinstance(value, list) else value
