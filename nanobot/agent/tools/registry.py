"""ToolRegistry: tools by name, and the error isolation around every call.

Whatever a tool does (raise, return nothing, return something odd), the caller gets a result that tells the model what
to do, without secrets. Only cancellation passes through.
"""

import asyncio
import inspect
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol, Self

from nanobot.agent.tools.base import Access, AccessKind, Tool, ToolContext, ToolResult, call_arguments, texts_in
from nanobot.agent.tools.validation import repair_arguments
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import Provenance, ToolFailure, ToolSchema, text_of
from nanobot.security.files.open import WrittenFile
from nanobot.security.files.paths import PathDeniedError
from nanobot.security.secrets import redact_known
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import nearest

_LONG = 200_000
"""Characters; longer texts are redacted in a thread, so that the event loop does not stall."""

logger = logging.getLogger(__name__)


class ToolSource(Protocol):
    """Provides tools that come and go: MCP servers, files of the owner."""

    async def refresh(self, registry: "ToolRegistry") -> None:
        """Bring the registry up to date before a turn. Never raises and never waits long: what is not ready comes with
        a later turn. An unchanged set of tools must not touch the registry."""
        ...

    async def close(self) -> None:
        """Release everything. Never raises."""
        ...


class ToolRegistry:
    def __init__(self) -> None:
        self.reads_back = False
        """Whether files that tools wrote are read back and compared."""
        self._tools: dict[str, Tool] = {}
        self._aliases: dict[str, str] = {}
        self._definitions: list[ToolSchema] | None = None
        self._weight: tuple[list[ToolSchema], int] | None = None
        self._sources: list[ToolSource] = []
        self._former_sources: list[ToolSource] = []

    def register(self, tool: Tool) -> None:
        """Add a tool; one of the same name is replaced. It also answers to the names in its `aliases`."""
        self.unregister(tool.name)
        self._tools[tool.name] = tool
        self._aliases.update(dict.fromkeys(getattr(tool, "aliases", ()), tool.name))
        self._definitions = None

    def unregister(self, name: str) -> None:
        if self._tools.pop(name, None) is not None:
            self._aliases = {alias: owner for alias, owner in self._aliases.items() if owner != name}
            self._definitions = None

    def add_source(self, source: ToolSource) -> None:
        """Refresh this source before each turn; it is closed with the registry."""
        self._sources.append(source)

    def remove_source(self, source: ToolSource) -> None:
        """Stop refreshing this source. Its tools stay until unregistered; it is closed with the registry."""
        self._sources = [other for other in self._sources if other is not source]
        self._former_sources.append(source)

    def snapshot(self) -> Self:
        """Return a copy with the present tools, for a turn that has begun: later changes are for later turns."""
        assert self.tokens >= 0  # noqa: S101 computed here, so that all copies share it
        copy = type(self).__new__(type(self))
        vars(copy).update(vars(self), _tools=dict(self._tools), _aliases=dict(self._aliases))
        return copy

    async def refresh(self) -> None:
        """Refresh all sources. Called before a turn."""
        for source in self._sources:
            await source.refresh(self)

    async def close(self) -> None:
        for source in reversed([*self._former_sources, *self._sources]):
            await source.close()

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name or alias. A tool's own name takes precedence over another's alias."""
        return self._tools.get(name) or self._tools.get(self._aliases.get(name, ""))

    def has(self, name: str) -> bool:
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
        """Return the schemas, sorted by name. The same object until the set of tools changes: do not edit it."""
        if self._definitions is None:
            self._definitions = [tool.to_schema() for tool in self]
        return self._definitions

    @property
    def tokens(self) -> int:
        """Estimated tokens of all definitions in a request."""
        definitions = self.get_definitions()
        if self._weight is None or self._weight[0] is not definitions:
            self._weight = (definitions, estimate_tokens(json.dumps(definitions)) if definitions else 0)
        return self._weight[1]

    def third_party_texts(self, but: str) -> dict[str, str]:
        """Return third-party texts in the definitions, by source; without the source of the tool `but`."""
        tool = self.get(but)
        texts: dict[str, list[str]] = {}
        for other in self._tools.values():
            if other.source and (tool is None or other.source != tool.source):
                texts.setdefault(other.source, []).extend([other.description, *texts_in(other.parameters)])
        return {source: "\n".join(parts) for source, parts in texts.items()}

    async def required_access(self, name: str, params: dict[str, Any], ctx: ToolContext) -> tuple[Access, ...]:
        """Return what this call would access. Never raises; empty for a call that cannot run."""
        tool = self.get(name)
        given: Any = params
        if tool is None or not isinstance(given, dict):
            return ()
        try:
            arguments = repair_arguments(tool.translate(given), tool.parameters)
            if tool.validate_params(arguments):
                return ()
            return tuple(await tool.required_access(arguments, ctx))
        except Exception:  # isolate third-party tools; assume the worst of one that fails here
            logger.warning("The tool %s could not declare what it accesses.", name, exc_info=True)
            return (Access(AccessKind.TOOL, tool.name),)

    async def execute(self, name: str, params: dict[str, Any]) -> str:
        """Run a tool outside of a turn and return its text. Never raises for a failure: the text describes it."""
        return text_of((await self.call(name, params)).content)

    async def call(self, name: str, params: dict[str, Any], ctx: ToolContext | None = None) -> ToolResult:
        """Run a tool. Never raises for a failure of the tool or its arguments: a failure is a result too."""
        tool = self.get(name)
        if tool is None:
            near = nearest(name, [*self.names, *self._aliases])
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            known = ", ".join(self.names) or "none"
            return ToolResult.failed(f"There is no tool named {name[:80]!r}.{hint} Tools: {known}.")
        try:
            given: Any = params  # a model may have sent anything
            if not isinstance(given, dict):
                return ToolResult.failed(f"The arguments of {name} must be one JSON object, not {repr(given)[:80]}.")
            arguments = repair_arguments(tool.translate(given), tool.parameters)
            if problems := tool.validate_params(arguments):
                return ToolResult.failed(f"{name} was not run. {' '.join(problems)} Correct this and call it again.")
            returned: Any = tool.execute(**call_arguments(tool, arguments, ctx))
            while inspect.isawaitable(returned):  # a tool that forgot an await
                returned = await returned
            result = _to_result(returned)
            if self.reads_back and result.written is not None:
                result = await asyncio.to_thread(_read_back, result, result.written)
        except (Exception, SystemExit) as error:  # isolate tools, also one that calls sys.exit
            logger.info("The tool %s failed.", name, exc_info=True)
            reason = error_text(error) if str(error) else "no reason given"
            result = ToolResult.failed(f"{name} failed with {type(error).__name__}: {reason[:2000]}")
        if result.provenance is None:
            result = replace(result, provenance=getattr(tool, "provenance", Provenance.TOOL))
        if len(text_of(result.content)) > _LONG:
            return await asyncio.to_thread(_redact_result, result)
        return _redact_result(result)


def _read_back(result: ToolResult, written: WrittenFile) -> ToolResult:
    """Compare the file on the disk with what the tool wrote; its content is not quoted. Blocks."""
    name = written.real.name
    try:
        there = written.read_again()
    except (OSError, PathDeniedError):
        remark = "It could not be read back."
    else:
        if there is not None and there.sha256 == written.sha256:
            remark = "Read back: as meant."
        elif there is not None and there.stamp == written.stamp:
            text = f"{name} was written, but what was read back from the disk differs. Look at it, and write it again."
            return replace(ToolResult.failed(text, ToolFailure.ENDED_BADLY), provenance=result.provenance)
        else:
            change = "deleted" if there is None else "changed"
            remark = f"Read back: somebody else has {change} {name} since. Look at it before you go on."
    return replace(result, content=f"{result.content} ({remark})") if isinstance(result.content, str) else result


def _redact_result(result: ToolResult) -> ToolResult:
    content: Any = result.content
    if isinstance(content, str):
        content = redact_known(content)
    else:
        content = [{**block, "text": redact_known(block["text"])} if "text" in block else block for block in content]
    return replace(result, content=content, display=redact_known(result.display) if result.display else result.display)


def _to_result(returned: Any) -> ToolResult:
    """Make a result of whatever a tool returned. A text that begins with "Error:" is a failure."""
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
