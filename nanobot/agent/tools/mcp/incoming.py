"""What a server sends, made bearable before the SDK looks at it: that judges each part, on the event loop."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

LONGEST_LIST = 2000
"""Tools, resources, parts of a result: of more in one message the rest is left away."""
_AT_ONCE_S = 0.01
_OTHERS = 3
"""How many times as long the loop is the others' as it is one server's that never stops talking."""


class Share:
    """How much of the event loop one server may take. What it sends meanwhile waits where it comes from."""

    def __init__(self) -> None:
        self._taken_s = 0.0

    async def took(self, seconds: float) -> None:
        """It took so long of the loop. Returns when it may take more."""
        self._taken_s += seconds
        if self._taken_s > _AT_ONCE_S:
            rest_s, self._taken_s = self._taken_s * _OTHERS, 0.0
            await asyncio.sleep(rest_s)


def parsed(line: bytes) -> "SessionMessage | None":
    """The message in a line; None where there is none. Blocks for as long as the line is long."""
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return bearable(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))
    except ValueError:
        pass
    try:  # NaN, and half a pair of surrogates: what Python and JavaScript write, and no JSON
        loose = json.loads(line.decode(errors="replace"), parse_constant=lambda _: None)
        return bearable(SessionMessage(jsonrpc_message_adapter.validate_python(_sound(loose), by_name=False)))
    except (ValueError, RecursionError):
        return None


def bearable(message: "SessionMessage") -> "SessionMessage":
    """The same message, its lists no longer than anybody reads."""
    result = getattr(message.message, "result", None)
    if isinstance(result, dict):
        for name, value in result.items():
            if isinstance(value, list) and len(value) > LONGEST_LIST:
                result[name] = value[:LONGEST_LIST]
    return message


def _sound(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_sound(name): _sound(inner) for name, inner in value.items()}
    return [_sound(inner) for inner in value] if isinstance(value, list) else value
