"""What a server offers, and the file that stores it: after a restart the tools are known before the server runs."""

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from nanobot.agent.tools.mcp.schema import normalize_schema
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.text import clip

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool as SdkTool

logger = logging.getLogger(__name__)

MAX_TOOLS = 500
_MAX_PAGES = 50
_MAX_DESCRIPTION_CHARS = 2_000
_FILE_CAP = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool as its server describes it."""

    name: str
    description: str
    schema: dict[str, Any]
    """Normalized."""
    reads: bool = False
    """Whether the server says that it changes nothing."""
    repeatable: bool = False
    """Whether the server says that running it twice has the effect of running it once."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything a server offers."""

    tools: tuple[ServerTool, ...]
    resources: bool = False
    prompts: bool = False
    server: str = ""
    """Its name and version, as it reports them."""
    protocol: str = ""
    is_legacy: bool = False
    """Whether it does not support the newest handshake."""
    left_out: int = 0
    """Number of tools that are left out: too many."""


async def fetch_listing(client: "Client") -> Listing:
    """Ask the server. Raises what the connection raises."""
    capabilities, info = client.server_capabilities, client.server_info
    tools: list[SdkTool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES if capabilities.tools is not None else 0):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor or len(tools) >= MAX_TOOLS:
            break
    accepted = {tool.name: _tool(tool) for tool in tools[:MAX_TOOLS] if tool.name}
    return Listing(
        tuple(accepted[name] for name in sorted(accepted)),
        resources=capabilities.resources is not None and await _has_resources(client),
        prompts=capabilities.prompts is not None and await _has_prompts(client),
        server=f"{info.name} {info.version}".strip()[:200] if info is not None else "",
        protocol=client.protocol_version,
        is_legacy=client.session.discover_result is None,
        left_out=len(tools) - len(accepted),
    )


async def _has_resources(client: "Client") -> bool:
    """Return whether there is any. Many servers support resources and have none: a useless tool would cost tokens."""
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
    description = tool.description or tool.title or (hints.title if hints else None) or ""
    return ServerTool(
        tool.name,
        clip(description.strip(), _MAX_DESCRIPTION_CHARS),
        normalize_schema(tool.input_schema),
        reads=bool(hints and hints.read_only_hint),
        repeatable=bool(hints and hints.idempotent_hint),
    )


class ListingFile:
    """Stores a server's listing, in a file named by the settings it belongs to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Listing | None:
        """Return the listing; None if there is none. Never raises."""
        try:
            if self._path.stat().st_size > _FILE_CAP:
                return None
            return _codec().validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("The stored tools of an MCP server could not be read: %s: %s", self._path, error)
            return None

    def save(self, listing: Listing) -> None:
        """Store the listing. Never raises: the server can be asked again."""
        try:
            make_private_folder(self._path.parent)
            write_atomic(self._path, _codec().dump_json(listing))
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("The tools of an MCP server could not be stored: %s: %s", self._path, error)


@cache
def _codec() -> TypeAdapter[Listing]:
    return TypeAdapter(Listing)


_MAX_NAME_CHARS = 64
_HASH_CHARS = 6
_INVALID = re.compile(r"[^A-Za-z0-9_-]+")


def tool_names(server: str, tools: Iterable[str], taken: AbstractSet[str] = frozenset()) -> dict[str, str]:
    """Return the offered name of each tool: `mcp_<server>_<tool>`. None of them is in `taken`.

    Providers accept letters, digits, `_` and `-`, at most 64. Names that would collide get a hash of the original.
    A name depends on the tools of the configured servers only, so it is the same after each start.
    """
    wanted = {tool: f"mcp_{server}_{tool}" for tool in tools}
    clean = {tool: _INVALID.sub("_", name) for tool, name in wanted.items()}
    short = Counter(name[:_MAX_NAME_CHARS] for name in clean.values())
    names = {}
    for tool, name in clean.items():
        exact = name == wanted[tool] and len(name) <= _MAX_NAME_CHARS
        alone = len(name) <= _MAX_NAME_CHARS and short[name] == 1
        names[tool] = name if (exact or alone) and name not in taken else _with_hash(name, wanted[tool])
    return names


def _with_hash(name: str, original: str) -> str:
    digest = hashlib.sha256(original.encode(errors="surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{name[: _MAX_NAME_CHARS - _HASH_CHARS - 1]}_{digest}"
