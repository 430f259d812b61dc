"""What a server offers, and the file that stores it: after a restart the tools are known before the server runs.

The schemas of its tools are normalized into what every provider accepts: references are inlined, the size is capped,
each value has one type or a choice of schemas, and the top level is an object. Where that loses meaning, the
description says it. That is pure, and never raises.
"""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.utils.codec import from_json, to_json
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.text import clip, clip_line

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


Schema = dict[str, Any]

MAX_DEPTH = 8
MAX_SCHEMAS = 1500
"""Number of schemas in one, once its references are inlined; the rest allows anything."""
MAX_CHARS = 24_000
"""Characters of a normalized schema; a longer one loses its inner levels."""
_MAX_TEXT_CHARS = 600
_MAX_PROPERTIES = 128
_MAX_BRANCHES = 64
_TYPES = ("object", "array", "string", "integer", "number", "boolean")
_BOUNDS = {"array": "Items", "string": "Length", "integer": "imum", "number": "imum"}
"""Endings of the keywords that begin with `min` and `max`, by type."""
_VALID_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ANYTHING: Schema = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "object"}]}


def normalize_schema(schema: object) -> Schema:
    """Normalize the schema of a tool's arguments. One that is not for an object becomes one without properties.

    A property whose name a provider would refuse is left out.
    """
    with suppress(RecursionError):
        for depth in (MAX_DEPTH, 4, 2, 1):
            normalizer = _Normalizer(schema)
            top, references = normalizer.resolve(schema, frozenset())
            if top.get("type", "object") != "object":
                break
            normalized = normalizer.object_schema(top, references, depth)
            if len(json.dumps(normalized)) <= MAX_CHARS:
                return normalized
    return {"type": "object", "properties": {}}


class _Normalizer:
    def __init__(self, root: object) -> None:
        self._root = root
        self._left = MAX_SCHEMAS

    def resolve(self, schema: object, references: frozenset[str]) -> tuple[Schema, frozenset[str]]:
        """Merge `$ref` and `allOf` into the schema, whose own keywords come first. `references` led here: none of them
        is followed again.
        """
        if not isinstance(schema, dict):
            return {}, references
        parts = list(_sequence(schema, "allOf")[:_MAX_BRANCHES])
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in references:
            references |= {reference}
            parts.append(self._target(reference))
        merged = schema
        for part in parts:
            inner, references = self.resolve(part, references)
            properties = {**_mapping(inner, "properties"), **_mapping(merged, "properties")}
            required = [*_sequence(merged, "required"), *_sequence(inner, "required")]
            merged = {**inner, **merged, "properties": properties, "required": required}
        return merged, references

    def _target(self, reference: str) -> object:
        """Find a reference within the document. No other document is ever fetched."""
        if reference.partition("/")[0] != "#":
            return None
        target: object = self._root
        for step in reference.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                target = target.get(name) if isinstance(target, dict) else None
        return target

    def _value(self, schema: object, references: frozenset[str], depth: int) -> Schema:
        self._left -= 1
        if self._left < 0:
            return _ANYTHING
        schema, references = self.resolve(schema, references)
        shown = self._shape(schema, references, depth)
        text = " ".join(str(schema.get("description") or schema.get("title") or "").split())
        notes = [clip_line(text, _MAX_TEXT_CHARS)] if text else []
        if (values := _values(schema)) and "enum" not in shown:
            notes.append(f"One of: {_list_values(values)}.")
        if isinstance(schema.get("default"), str | int | float):
            notes.append(f"Default: {_list_values([schema['default']])}.")
        if schema.get("additionalProperties") and not schema.get("properties"):
            notes.append("Any names are allowed.")
        return {"description": " ".join(notes), **shown} if notes else shown

    def _shape(self, schema: Schema, references: frozenset[str], depth: int) -> Schema:
        types = schema.get("type")
        kinds = [kind for kind in (types if isinstance(types, list) else [types]) if kind in _TYPES]
        branches = [branch for branch in _branches(schema) if branch.get("type") != "null"]
        if len(kinds) != 1 and branches and not schema.get("properties"):
            return _choice([self._value(branch, references, depth - 1) for branch in branches] if depth > 0 else [])
        if len(kinds) > 1:
            return _choice([self._shape({**schema, "type": kind}, references, depth) for kind in kinds])
        kind = kinds[0] if kinds else _guess_type(schema)
        if kind is None:
            return _ANYTHING
        if kind == "object":
            return self.object_schema(schema, references, depth)
        shown: Schema = {"type": kind}
        values = [value for value in _values(schema) if value is not None]
        if kind == "string" and 0 < len(values) <= 200 and all(isinstance(value, str) and value for value in values):
            shown["enum"] = list(dict.fromkeys(values))
        if kind == "array":
            items = schema.get("items") if "prefixItems" not in schema else None
            shown["items"] = self._value(items, references, depth - 1) if depth > 0 else _ANYTHING
        bounds = [f"{end}{_BOUNDS[kind]}" for end in ("min", "max") if kind in _BOUNDS]
        return shown | {name: schema[name] for name in bounds if type(schema.get(name)) in (int, float)}

    def object_schema(self, schema: Schema, references: frozenset[str], depth: int) -> Schema:
        """Make an object. Its properties are those of all branches: at the top, no provider accepts a union."""
        properties: Schema = {}
        for part, followed in self._with_branches(schema, references) if depth > 0 else ():
            for name, value in _mapping(part, "properties").items():
                if name not in properties and len(properties) < _MAX_PROPERTIES and _VALID_NAME.fullmatch(str(name)):
                    properties[name] = self._value(value, followed, depth - 1)
        required = [*dict.fromkeys(name for name in _sequence(schema, "required") if name in properties)]
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}

    def _with_branches(self, schema: Schema, references: frozenset[str]) -> Iterator[tuple[Schema, frozenset[str]]]:
        yield schema, references
        self._left -= 1
        for branch in _branches(schema) if self._left > 0 else ():
            yield from self._with_branches(*self.resolve(branch, references))


def _mapping(schema: Schema, word: str) -> Schema:
    value = schema.get(word)
    return value if isinstance(value, dict) else {}


def _sequence(schema: Schema, word: str) -> list[Any]:
    value = schema.get(word)
    return value if isinstance(value, list) else []


def _branches(schema: Schema) -> list[Schema]:
    branches = (_sequence(schema, "anyOf") or _sequence(schema, "oneOf"))[:_MAX_BRANCHES]
    return [branch if isinstance(branch, dict) else {} for branch in branches]


def _values(schema: Schema) -> list[Any]:
    return [schema["const"]] if "const" in schema else _sequence(schema, "enum")


def _choice(schemas: list[Schema]) -> Schema:
    different = [schema for index, schema in enumerate(schemas) if schema not in schemas[:index]]
    if not different:
        return _ANYTHING
    return different[0] if len(different) == 1 else {"anyOf": different[:16]}


def _guess_type(schema: Schema) -> str | None:
    """Guess the type of a schema that does not state it."""
    values = _values(schema)
    if values and all(isinstance(value, str) for value in values):
        return "string"
    if schema.get("properties") or "additionalProperties" in schema:
        return "object"
    return "array" if isinstance(schema.get("items"), dict) else None


def _list_values(values: list[Any]) -> str:
    return clip_line(", ".join(json.dumps(value, ensure_ascii=False) for value in values[:200]), 400)
