"""Tools that reach for something, as those of the house do, and remember what they did."""

from collections.abc import Sequence
from typing import Any

from nanobot.agent.tools.base import Access, AccessKind, Effect, Tool, ToolContext, ToolResult, string, takes
from nanobot.messages.types import Provenance


class Sink(Tool):
    """Does something that may need a yes: its `target` is what it reaches for, under one kind."""

    description = "Does something."
    effect = Effect.ONCE
    derives = True

    def __init__(self, name: str, kind: AccessKind, *, beyond: bool = False) -> None:
        self.name = name
        self.kind = kind
        self.beyond = beyond
        self.parameters = takes("target", target=string("What to reach for"), text=string("What to do there"))
        self.done: list[str] = []

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        return (Access(self.kind, arguments["target"], self.beyond),)

    async def execute(self, target: str, text: str = "", *, ctx: ToolContext) -> str:
        if self.beyond and f"{self.kind}:{target}" not in ctx.granted:
            return "Error: the wall holds"
        self.done.append(f"{target} {text}".strip())
        return f"done with {target}"


class Source(Tool):
    """Brings words from outside."""

    description = "Reads something."
    effect = Effect.READ

    def __init__(self, name: str, text: str, provenance: Provenance) -> None:
        self.name = name
        self.parameters = takes("url", url=string("Where"))
        self._result = ToolResult(text, provenance=provenance)

    async def execute(self, url: str) -> ToolResult:
        return self._result


def command() -> Sink:
    return Sink("run", AccessKind.COMMAND)


def folder() -> Sink:
    return Sink("put", AccessKind.FOLDER, beyond=True)


def page(text: str = "Nothing of note.") -> Source:
    return Source("web_page", text, Provenance.WEB)
