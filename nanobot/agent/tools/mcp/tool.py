"""The tools of a server: each of its own, one that reads its resources and one that gives its prompts."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.mcp.listing import ServerTool
from nanobot.agent.tools.mcp.results import Received, prompt_of, resource_of, result_of
from nanobot.agent.tools.mcp.schema import normalised
from nanobot.agent.tools.mcp.server import RESOURCES, McpServer, ServerFailedError
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.agent.tools.schema import string, takes
from nanobot.agent.tools.validation import problems_with
from nanobot.messages.types import Provenance, ToolFailure
from nanobot.security.urls import hosts_told
from nanobot.security.vault import secret_in
from nanobot.utils.text import clip, clip_line

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Prompt

T = TypeVar("T")

LONGEST_DESCRIPTION = 2000
LONGEST_CALL = timedelta(hours=1)
"""A call that says now and then how far it is may take longer than the time-out, but not for ever."""
_TOLD_EVERY_S = 0.2
"""How often a person is told of how far it is."""
_MOST_LISTED = 200


class _FromServer(Tool):
    """What all tools of a server share: a limit of time, and words for what goes wrong."""

    provenance = Provenance.MCP

    def __init__(self, server: McpServer, name: str, description: str, workspace: Path) -> None:
        self.server = server
        self.source = f"the MCP server {server.settings.name}"
        self.name = name
        self.description = description
        self._received = Received(workspace)

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """The hosts that the arguments could have the server carry words to."""
        return _hosts_told_of(arguments)

    async def _ask(
        self,
        request: "Callable[[Client, Callable[[], None]], Awaitable[T]]",
        then: Callable[[T], Awaitable[ToolResult]],
        *,
        sent: object = None,
        repeatable: bool,
    ) -> ToolResult:
        """Ask the server. `request` is handed what to call when the server is still at it; `sent` is what it is told.

        A secret of ours is told to none: the one it needs it has from its owner, by its environment or headers.
        """
        from mcp.shared.exceptions import MCPError

        if (secret := secret_in(json.dumps(sent, ensure_ascii=False, default=str))) is not None:
            return ToolResult.failed(
                f"{self.name} was not called: what it would be told holds the secret {secret}, and secrets go nowhere "
                "but where they belong.",
                ToolFailure.NOT_RUN,
            )
        limit = self.server.settings.tool_timeout_s
        loop = asyncio.get_running_loop()
        last = loop.time() + LONGEST_CALL.total_seconds()
        try:
            # Connecting has a limit of its own, so the clock of the call is set when the call begins.
            async with asyncio.timeout(None) as patience:

                def still_at_it() -> None:
                    with suppress(RuntimeError):  # a word that came when the time was up
                        patience.reschedule(min(loop.time() + limit, last))

                async def begin(client: "Client") -> T:
                    still_at_it()
                    return await request(client, still_at_it)

                answer = await self.server.ask(begin, repeatable=repeatable)
        except TimeoutError:
            return ToolResult.failed(
                f"{self.name} did not answer within {limit:g} s and was told to stop. Maybe it was done all the same. "
                f"Ask for less; its owner can raise tools.mcpServers.{self.server.settings.name}.toolTimeout."
            )
        except ServerFailedError as error:
            return ToolResult.failed(str(error))
        except MCPError as error:
            return ToolResult.failed(f"{self.name} was refused by its server: {clip(error.message, 2000)}")
        except ValueError as error:  # pydantic's too
            return ToolResult.failed(f"{self.name} got an answer from its server that is none: {clip(str(error), 500)}")
        return await then(answer)


class McpTool(_FromServer):
    """One tool of a server."""

    def __init__(self, server: McpServer, tool: ServerTool, name: str, workspace: Path) -> None:
        said = (
            clip(tool.description.strip(), LONGEST_DESCRIPTION) or f"{tool.name} of the server {server.settings.name}."
        )
        super().__init__(server, name, said, workspace)
        self._schema = normalised(tool.schema)
        self.parameters = self._schema.shown
        self._tool = tool

    @property
    def wants_context(self) -> bool:
        """Yes, unless a parameter of the server's own has the name of the turn's."""
        return "ctx" not in self._schema.checked.get("properties", {})

    async def execute(self, /, **arguments: Any) -> ToolResult:
        """Have the server do it. Any names are the server's: `self` is one of them somewhere."""
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

        ctx: ToolContext | None = arguments.pop("ctx", None) if self.wants_context else None
        # By the session itself: its `call_tool` judges answers by the server's own output schema, which may be hostile.
        given = CallToolRequestParams(name=self._tool.name, arguments=self._schema.restored(arguments))
        asked = CallToolRequest(params=given)

        async def request(client: "Client", still_at_it: Callable[[], None]) -> CallToolResult:
            last_told = -math.inf

            async def progress(progress: float, total: float | None, message: str | None) -> None:
                nonlocal last_told
                still_at_it()
                now = asyncio.get_running_loop().time()
                if ctx is not None and (message or total) and now - last_told >= _TOLD_EVERY_S:
                    last_told = now
                    ctx.emit(clip_line(message or f"{progress:g} of {total:g}", 200))

            return await client.session.send_request(asked, CallToolResult, progress_callback=progress)

        repeatable = self._tool.reads or self._tool.repeatable
        return await self._ask(
            request, lambda answer: result_of(answer, self._received), sent=given.arguments, repeatable=repeatable
        )

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """The tool as a whole, unless its server says that it only reads."""
        if self._tool.reads:
            return await super().reaches(arguments, ctx)
        detail = f"{self._tool.name} of the MCP server {self.server.settings.name}"
        return (Reach(ReachKind.TOOL, self.name, detail=detail),)

    def validate_params(self, params: dict[str, Any]) -> list[str]:
        """What is wrong by the server's own schema, as far as it can be judged here."""
        return problems_with(self._schema.restored(params), self._schema.checked)


class ReadingMcpTool(McpTool):
    """A tool that says of itself that it changes nothing."""

    effect = Effect.READ


class RepeatableMcpTool(McpTool):
    """A tool that says of itself that doing it twice is the same as doing it once."""

    effect = Effect.REPEATABLE


class ResourcesTool(_FromServer):
    """What a server has to read."""

    effect = Effect.READ
    parameters = takes(uri=string("What to read; without it, what there is is listed"))

    def __init__(self, server: McpServer, name: str, workspace: Path) -> None:
        super().__init__(server, name, f"List or read what the server {server.settings.name} has to read.", workspace)

    async def execute(self, uri: str = "") -> ToolResult:
        """Read it, or list what there is."""
        if uri:
            return await self._ask(
                lambda client, _: client.read_resource(uri),
                lambda answer: resource_of(answer, self._received),
                sent=uri,
                repeatable=True,
            )

        async def request(client: "Client", _: Callable[[], None]) -> str:
            listed = (await client.list_resources()).resources
            lines = [f"{one.uri}  {one.description or one.title or one.name}" for one in listed[:_MOST_LISTED]]
            templates = (await client.list_resource_templates()).resource_templates
            lines += [f"{one.uri_template}  {one.description or one.name}" for one in templates[:_MOST_LISTED]]
            return "\n".join(clip_line(line, 400) for line in lines) or "There is nothing to read."

        return await self._ask(request, _as_it_is, repeatable=True)


class PromptsTool(_FromServer):
    """What a server has to say about its use."""

    effect = Effect.READ
    parameters = takes(
        name=string("Which prompt; without it, what there is is listed"),
        arguments={"type": "object", "description": "Its arguments, each a text", "properties": {}},
    )

    def __init__(self, server: McpServer, name: str, workspace: Path) -> None:
        said = f"List the prompts of the server {server.settings.name}, or fill one in and read it."
        super().__init__(server, name, said, workspace)

    async def execute(self, name: str = "", arguments: dict[str, Any] | None = None) -> ToolResult:
        """Give the prompt, or list what there is."""
        if name:
            given = {key: one if isinstance(one, str) else json.dumps(one) for key, one in (arguments or {}).items()}
            return await self._ask(
                lambda client, _: client.get_prompt(name, given),
                lambda answer: prompt_of(answer, self._received),
                sent=given,
                repeatable=True,
            )

        async def request(client: "Client", _: Callable[[], None]) -> str:
            prompts = (await client.list_prompts()).prompts[:_MOST_LISTED]
            return "\n".join(clip_line(_in_a_line(one), 400) for one in prompts) or "There are no prompts."

        return await self._ask(request, _as_it_is, repeatable=True)


def _in_a_line(prompt: "Prompt") -> str:
    takes = ", ".join(one.name if one.required else f"{one.name}?" for one in prompt.arguments or ())
    return f"{prompt.name}({takes})  {prompt.description or prompt.title or ''}"


async def _as_it_is(text: str) -> ToolResult:
    return ToolResult(text)


def _hosts_told_of(value: object) -> tuple[Reach, ...]:
    if isinstance(value, str):
        return tuple(Reach(ReachKind.HOST, host, detail=url) for host, url in hosts_told(value))
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return tuple(reach for one in inner for reach in _hosts_told_of(one))


def tools_of(server: McpServer, taken: AbstractSet[str], workspace: Path) -> list[Tool]:
    """What a server offers and its owner wants, as tools; none under a name that is taken."""
    known = {tool.name: tool for tool in server.listing.tools} if server.listing is not None else {}
    tools: list[Tool] = []
    for own_name, name in server.offered(taken).items():
        tool = known.get(own_name)
        if tool is None:
            kind = ResourcesTool if own_name == RESOURCES else PromptsTool
            tools.append(kind(server, name, workspace))
        else:
            own_kind = ReadingMcpTool if tool.reads else RepeatableMcpTool if tool.repeatable else McpTool
            tools.append(own_kind(server, tool, name, workspace))
    return tools
