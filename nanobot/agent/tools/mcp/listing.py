"""What a server offers, and the file that stores it: after a restart the tools are known before the server runs."""

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.agent.tools.mcp.schema import normalize_schema
from nanobot.utils.codec import from_json, to_json
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.text import clip

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool as SdkTool

logger = logging.getLogger(__name__)

MAX_TOOLS = 500
_MAX_PAGES = 50
_MAX_DESCRIPTION_CHARS = 2_000
_MAX_NAME_CHARS = 64


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool as its server describes it; the schema is normalized."""

    name: str
    description: str
    schema: dict[str, Any]
    reads: bool = False
    """Whether the server says that it changes nothing."""
    repeatable: bool = False
    """Whether the server says that running it twice has the effect of running it once."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything a server offers. `server` is its name and version, as it reports them."""

    tools: tuple[ServerTool, ...]
    resources: bool = False
    prompts: bool = False
    server: str = ""
    protocol: str = ""
    is_legacy: bool = False
    """Whether it does not support the newest handshake: asking for that may cost 10 s at each start."""
    left_out: int = 0
    """Number of tools that are left out: too many."""


async def fetch_listing(client: "Client") -> Listing:
    """Ask the server. Raises what the connection raises."""
    from mcp.shared.exceptions import MCPError

    capabilities, info = client.server_capabilities, client.server_info
    tools: list[SdkTool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES if capabilities.tools is not None else 0):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor or len(tools) >= MAX_TOOLS:
            break
    # Many servers support resources or prompts and have none: a useless tool would cost tokens.
    resources = prompts = False
    with suppress(MCPError):
        if capabilities.resources is not None:
            resources = bool((await client.list_resources()).resources) or bool(
                (await client.list_resource_templates()).resource_templates
            )
    with suppress(MCPError):
        prompts = capabilities.prompts is not None and bool((await client.list_prompts()).prompts)
    accepted = {tool.name: _tool(tool) for tool in tools[:MAX_TOOLS] if tool.name}
    return Listing(
        tuple(accepted[name] for name in sorted(accepted)),
        resources,
        prompts,
        server=f"{info.name} {info.version}".strip()[:200] if info is not None else "",
        protocol=client.protocol_version,
        is_legacy=client.session.discover_result is None,
        left_out=len(tools) - len(accepted),
    )


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


def load_listing(path: Path) -> Listing | None:
    """Return the listing stored there; None if there is none. Never raises."""
    try:
        return from_json(Listing, path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("The stored tools of an MCP server could not be read: %s: %s", path, error)
        return None


def save_listing(path: Path, listing: Listing) -> None:
    """Store the listing. Never raises: the server can be asked again."""
    try:
        make_private_folder(path.parent)
        write_atomic(path, to_json(listing))
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("The tools of an MCP server could not be stored: %s: %s", path, error)


def tool_names(server: str, tools: Iterable[str], taken: AbstractSet[str] = frozenset()) -> dict[str, str]:
    """Return the offered name of each tool: `mcp_<server>_<tool>`. None of them is in `taken`.

    Providers accept letters, digits, `_` and `-`, at most 64. Names that would collide get a hash of the original.
    A name depends on the tools of the configured servers only, so it is the same after each start.
    """
    wanted = {tool: f"mcp_{server}_{tool}" for tool in tools}
    clean = {tool: re.sub(r"[^A-Za-z0-9_-]+", "_", name) for tool, name in wanted.items()}
    short = Counter(name[:_MAX_NAME_CHARS] for name in clean.values())
    names = {}
    for tool, name in clean.items():
        fits = len(name) <= _MAX_NAME_CHARS and (name == wanted[tool] or short[name] == 1)
        digest = hashlib.sha256(wanted[tool].encode(errors="surrogatepass")).hexdigest()[:6]
        names[tool] = name if fits and name not in taken else f"{name[: _MAX_NAME_CHARS - 7]}_{digest}"
    return names
