"""What a server offers, and the file that remembers it: the next start has the tools before it has the server."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.utils.files import make_private_folder, write_atomic, write_in_place

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool as SdkTool

logger = logging.getLogger(__name__)

MOST_TOOLS = 500
_MOST_PAGES = 50
_LONGEST_SCHEMA = 2_000_000
_MOST_OF_ALL = 6_000_000
"""Characters of all the tools of a server."""
_LONGEST_WORDS = 20_000
_REMEMBERED_AS_SLOW = timedelta(minutes=10)
_FILE_CAP = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool as its server tells of it."""

    name: str
    description: str
    schema: dict[str, Any]
    reads: bool = False
    """Whether it says that it changes nothing."""
    repeatable: bool = False
    """Whether it says that doing it twice is the same as doing it once."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All that a server offers."""

    tools: tuple[ServerTool, ...] = ()
    resources: bool = False
    prompts: bool = False
    server: str = ""
    """Its name and version, as it says."""
    protocol: str = ""
    old: bool = False
    """Whether it knows nothing of the newest handshake."""
    left_out: int = 0
    """How many tools are too many, or too large."""


async def listing_of(client: "Client") -> Listing:
    """Ask the server. Raises what the connection does."""
    capabilities, info = client.server_capabilities, client.server_info
    found: list[SdkTool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES if capabilities.tools is not None else 0):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor or len(found) >= MOST_TOOLS:
            break
    kept = {tool.name: _tool(tool) for tool in _bearable(found)}
    return Listing(
        tuple(kept[name] for name in sorted(kept)),
        resources=capabilities.resources is not None and await _has_resources(client),
        prompts=capabilities.prompts is not None and await _has_prompts(client),
        server=f"{info.name} {info.version}".strip()[:200] if info is not None else "",
        protocol=client.protocol_version,
        old=client.session.discover_result is None,
        left_out=len(found) - len(kept),
    )


async def _has_resources(client: "Client") -> bool:
    """Whether there is one. Many a server can tell of some and has none: a tool for nothing would cost tokens."""
    from mcp.shared.exceptions import MCPError

    with suppress(MCPError):
        if (await client.list_resources()).resources:
            return True
        return bool((await client.list_resource_templates()).resource_templates)
    return False


async def _has_prompts(client: "Client") -> bool:
    from mcp.shared.exceptions import MCPError

    with suppress(MCPError):
        return bool((await client.list_prompts()).prompts)
    return False


def _tool(tool: "SdkTool") -> ServerTool:
    hints = tool.annotations
    return ServerTool(
        tool.name,
        (tool.description or tool.title or (hints.title if hints else None) or "")[:_LONGEST_WORDS],
        tool.input_schema,
        reads=bool(hints and hints.read_only_hint),
        repeatable=bool(hints and hints.idempotent_hint),
    )


def _bearable(tools: "Sequence[SdkTool]") -> "Iterator[SdkTool]":
    """Those that are not too many, each not too large, nor all of them together."""
    left = _MOST_OF_ALL
    for tool in tools[:MOST_TOOLS]:
        try:
            size = len(json.dumps(tool.input_schema)) + min(len(tool.description or ""), _LONGEST_WORDS)
        except (RecursionError, ValueError):
            continue
        if 0 < len(tool.name) <= 1000 and size <= min(left, _LONGEST_SCHEMA):
            left -= size
            yield tool


class ListingFile:
    """Where a server's listing is remembered, for as long as the server stays the one it was made for."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self._slow = path.with_suffix(".slow")
        self._fingerprint = fingerprint

    def load(self) -> Listing | None:
        """What is remembered; None where there is nothing, or of another server. Never raises."""
        try:
            if self._path.stat().st_size > _FILE_CAP:
                return None
            stored = json.loads(self._path.read_bytes())
            if stored.pop("fingerprint") != self._fingerprint:
                return None
            tools = tuple(ServerTool(**_known(tool, ServerTool)) for tool in stored.pop("tools"))
            return replace(Listing(**_known(stored, Listing)), tools=tools)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            logger.warning("What was remembered of an MCP server could not be read: %s: %s", self._path, error)
            return None

    def was_slow(self, now: datetime) -> bool:
        """Whether it kept somebody waiting in vain in the last minutes. Never raises."""
        try:
            noted = datetime.fromtimestamp(self._slow.stat().st_mtime, UTC)
        except OSError:
            return False
        return abs(now - noted) < _REMEMBERED_AS_SLOW

    def note_slowness(self) -> None:
        """It just did. Never raises."""
        with suppress(OSError):
            write_in_place(self._slow, b"")

    def save(self, listing: Listing) -> None:
        """Remember it. Never raises: it can be asked for again."""
        try:
            make_private_folder(self._path.parent)
            self._slow.unlink(missing_ok=True)
            write_atomic(self._path, json.dumps({"fingerprint": self._fingerprint, **asdict(listing)}))
        except (OSError, RecursionError) as error:
            logger.warning("The tools of an MCP server could not be remembered: %s: %s", self._path, error)


def _known(stored: Mapping[str, Any], shape: type[ServerTool] | type[Listing]) -> dict[str, Any]:
    return {field.name: stored[field.name] for field in fields(shape) if field.name in stored}
