"""ToolRegistry: name to tool, and the wall around every call.

Whatever a tool does (raise, return nothing, return something odd), what comes back is a result that tells the model
what to do, and no secret of ours. Only a cancel goes through.
"""

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from nanobot.agent.tools.base import Tool, ToolContext, ToolResult
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.agent.tools.validation import mended
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import Provenance, ToolSchema, text_of
from nanobot.security.vault import masked
from nanobot.utils.text import nearest

_LONG = 200_000
"""Characters that take longer to look through than the event loop may stand still."""

logger = logging.getLogger(__name__)


class ToolSource(Protocol):
    """Where tools come from that come and go: servers, files of the owner's."""

    async def refresh(self, registry: "ToolRegistry") -> None:
        """Bring the registry up to date, before a turn begins. Never raises, and never waits long: what is not there
        yet comes with a later turn. A set of tools that has not changed must not touch the registry."""
        ...

    async def close(self) -> None:
        """Let go of what it holds. Never raises."""
        ...


class Watch(Protocol):
    """Sees calls through: it looks before and after."""

    async def see_through(
        self, name: str, arguments: dict[str, Any], ctx: ToolContext | None, run: Callable[[], Awaitable[ToolResult]]
    ) -> ToolResult:
        """Have the call `run`; its result, or what is to be said instead. The arguments fit the tool's schema."""
        ...


class ToolRegistry:
    """The tools of one bot."""

    def __init__(self, watch: Watch | None = None) -> None:
        """`watch` sees each call through, beside its tool; without one, nobody does."""
        self._watch = watch
        self._tools: dict[str, Tool] = {}
        self._aliases: dict[str, str] = {}
        self._definitions: list[ToolSchema] | None = None
        self._weight: tuple[list[ToolSchema], int] | None = None
        self._sources: list[ToolSource] = []

    def register(self, tool: Tool) -> None:
        """Add a tool; one of the same name is replaced. It also answers to the names in its `aliases`."""
        self.unregister(tool.name)
        self._tools[tool.name] = tool
        self._aliases.update(dict.fromkeys(getattr(tool, "aliases", ()), tool.name))
        self._definitions = None

    def unregister(self, name: str) -> None:
        """Take a tool away, if it is there."""
        if self._tools.pop(name, None) is not None:
            self._aliases = {alias: owner for alias, owner in self._aliases.items() if owner != name}
            self._definitions = None

    def add_source(self, source: ToolSource) -> None:
        """Ask there too before each turn; it is closed with the registry."""
        self._sources.append(source)

    async def refresh(self) -> None:
        """A turn is about to begin: see what its sources have now."""
        for source in self._sources:
            await source.refresh(self)

    async def close(self) -> None:
        """Let go of the sources."""
        for source in reversed(self._sources):
            await source.close()

    def get(self, name: str) -> Tool | None:
        """The tool of this name or alias. A tool's own name goes before another's alias."""
        return self._tools.get(name) or self._tools.get(self._aliases.get(name, ""))

    def has(self, name: str) -> bool:
        """Whether a tool answers to this name."""
        return self.get(name) is not None

    @property
    def names(self) -> list[str]:
        """All names, sorted, without aliases."""
        return sorted(self._tools)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.has(name)

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter([self._tools[name] for name in self.names])

    def get_definitions(self) -> list[ToolSchema]:
        """What a provider is told, sorted by name. The very same object until the set of tools changes: do not edit."""
        if self._definitions is None:
            self._definitions = [tool.to_schema() for tool in self]
        return self._definitions

    @property
    def tokens(self) -> int:
        """What the definitions weigh in a request, estimated once a set of tools."""
        definitions = self.get_definitions()
        if self._weight is None or self._weight[0] is not definitions:
            self._weight = (definitions, estimate_tokens(json.dumps(definitions)) if definitions else 0)
        return self._weight[1]

    def told_by_others(self, but: str) -> dict[str, str]:
        """What each request says of tools in others' words, by who says it; not who also has the tool `but`."""
        tool = self.get(but)
        told: dict[str, list[str]] = {}
        for other in self._tools.values():
            if other.source and (tool is None or other.source != tool.source):
                told.setdefault(other.source, []).append(f"{other.description}\n{_texts_in(other.parameters)}")
        return {source: "\n".join(words) for source, words in told.items()}

    async def reaches(self, name: str, params: dict[str, Any], ctx: ToolContext) -> tuple[Reach, ...]:
        """What this call would reach for. Never raises; of a call that cannot run, nothing."""
        tool = self.get(name)
        asked: Any = getattr(tool, "reaches", None)  # somebody's own tool may know nothing of it
        given: Any = params
        if tool is None or not isinstance(given, dict):
            return ()
        try:
            arguments = mended(given, tool.parameters)
            if tool.validate_params(arguments):
                return ()
            if asked is not None:
                return tuple(await asked(arguments, ctx))
        except Exception:  # the wall of a tool; of one that cannot say, the worst is believed
            logger.warning("The tool %s could not tell what it reaches for.", name, exc_info=True)
        return (Reach(ReachKind.TOOL, tool.name),)

    async def execute(self, name: str, params: dict[str, Any]) -> str:
        """Run a tool outside of a turn and give its text. Never raises for a failure: the text says what went wrong."""
        return text_of((await self.call(name, params)).content)

    async def call(self, name: str, params: dict[str, Any], ctx: ToolContext | None = None) -> ToolResult:
        """Run a tool. Never raises for a failure of the tool or of its arguments: a failure is a result too."""
        tool = self.get(name)
        if tool is None:
            return ToolResult.failed(self._no_such_tool(name))
        try:
            given: Any = params  # a model may have sent anything
            if not isinstance(given, dict):
                return ToolResult.failed(f"The arguments of {name} must be one JSON object, not {repr(given)[:80]}.")
            arguments = mended(given, tool.parameters)
            if problems := tool.validate_params(arguments):
                return ToolResult.failed(f"{name} was not run. {' '.join(problems)} Call it again with this put right.")
            run = partial(_result_of, tool, arguments, ctx)
            watch = self._watch
            result = await (run() if watch is None else watch.see_through(tool.name, arguments, ctx, run))
        except (Exception, SystemExit) as error:  # the wall of a tool: also one that calls sys.exit only ends itself
            logger.info("The tool %s failed.", name, exc_info=True)
            said = str(error) or "no reason given"
            result = ToolResult.failed(f"{name} failed with {type(error).__name__}: {said[:2000]}")
        if result.provenance is None:
            result = replace(result, provenance=getattr(tool, "provenance", Provenance.TOOL))
        if len(text_of(result.content)) > _LONG:
            return await asyncio.to_thread(_without_secrets, result)
        return _without_secrets(result)

    def _no_such_tool(self, name: str) -> str:
        known = self.names
        near = nearest(name, [*known, *self._aliases])
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        return f"There is no tool named {name[:80]!r}.{hint} Tools: {', '.join(known) or 'none'}."


async def _result_of(tool: Tool, arguments: dict[str, Any], ctx: ToolContext | None) -> ToolResult:
    given = {**arguments, "ctx": ctx} if ctx is not None and tool.wants_context else arguments
    returned: Any = tool.execute(**given)
    while inspect.isawaitable(returned):  # a tool that forgot an await has only made its result wait
        returned = await returned
    return _as_result(returned)


def _without_secrets(result: ToolResult) -> ToolResult:
    content: Any = result.content
    if isinstance(content, str):
        content = masked(content)
    else:
        content = [{**block, "text": masked(block["text"])} if "text" in block else block for block in content]
    return replace(result, content=content, display=masked(result.display) if result.display else result.display)


def _as_result(returned: Any) -> ToolResult:
    """What a tool gave back, whatever it was, as a result. Tools that return text begin it with "Error:" to fail."""
    if isinstance(returned, ToolResult):
        return returned
    if returned is None:
        return ToolResult("The tool ended and returned nothing.")
    if isinstance(returned, str):
        if returned.startswith("Error:"):
            return ToolResult.failed(returned)
        return ToolResult(returned or "The tool ended with an empty text.")
    try:
        return ToolResult(json.dumps(returned, ensure_ascii=False, default=str))
    except (TypeError, ValueError, RecursionError):
        return ToolResult(str(returned))


def _texts_in(value: Any) -> str:
    if isinstance(value, dict | list):
        return "\n".join(filter(None, map(_texts_in, value.values() if isinstance(value, dict) else value)))
    return value if isinstance(value, str) else ""
