"""The tools of a server: one for each of its own, one for its resources and one for its prompts."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nanobot.agent.tools.access import Access, AccessKind
from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult, string, takes
from nanobot.agent.tools.mcp.listing import ServerTool
from nanobot.agent.tools.mcp.results import ReceivedFiles, convert_prompt, convert_resource, convert_result
from nanobot.agent.tools.mcp.server import RESOURCES, McpServer, ServerFailedError
from nanobot.messages.types import Provenance, ToolFailure
from nanobot.net.urls import find_hosts
from nanobot.security.secrets import find_secret
from nanobot.utils.text import clip, clip_line

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Prompt

T = TypeVar("T")

MAX_CALL = timedelta(hours=1)
"""A call that reports progress may exceed the timeout, but not this."""
_PROGRESS_INTERVAL_S = 0.2
_MAX_LISTED = 200


class _ServerTool(Tool):
    """What all tools of a server share: timeout and error texts."""

    provenance = Provenance.MCP

    def __init__(self, server: McpServer, name: str, description: str, workspace: Path) -> None:
        self.server = server
        self.source = f"the MCP server {server.settings.name}"
        self.name = name
        self.description = description
        self._received = ReceivedFiles(workspace)

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Declare the hosts in the arguments, to which the server could carry data."""
        return _hosts_in(arguments)

    async def _ask(
        self,
        request: "Callable[[Client, Callable[[], None]], Awaitable[T]]",
        convert: Callable[[T], Awaitable[ToolResult]],
        *,
        sent: object = None,
        repeatable: bool,
    ) -> ToolResult:
        """Send a request. It gets a function to call when the server makes progress; `sent` is its content.

        Refuses to send secrets: those the server needs are in its environment or headers.
        """
        from mcp.shared.exceptions import MCPError

        if (secret := find_secret(json.dumps(sent, ensure_ascii=False, default=str))) is not None:
            return ToolResult.failed(
                f"{self.name} was not called: its arguments hold the secret {secret}, and no tool sends secrets.",
                ToolFailure.NOT_RUN,
            )
        timeout_s = self.server.settings.tool_timeout_s
        loop = asyncio.get_running_loop()
        last = loop.time() + MAX_CALL.total_seconds()
        try:
            # Connecting has a timeout of its own, so the call's timeout starts with the call.
            async with asyncio.timeout(None) as deadline:

                def on_progress() -> None:
                    with suppress(RuntimeError):  # progress came after the timeout
                        deadline.reschedule(min(loop.time() + timeout_s, last))

                async def start(client: "Client") -> T:
                    on_progress()
                    return await request(client, on_progress)

                answer = await self.server.ask(start, repeatable=repeatable)
        except TimeoutError:
            return ToolResult.failed(
                f"{self.name} did not answer within {timeout_s:g} s and was told to stop. It may have been done all "
                f"the same. Ask for less; the owner can raise tools.mcpServers.{self.server.settings.name}.toolTimeout."
            )
        except ServerFailedError as error:
            return ToolResult.failed(str(error))
        except MCPError as error:
            return ToolResult.failed(f"{self.name} was refused by its server: {clip(error.message, 2000)}")
        except ValueError as error:  # pydantic's too
            return ToolResult.failed(f"{self.name} got an invalid answer from its server: {clip(str(error), 500)}")
        return await convert(answer)


class McpTool(_ServerTool):
    """One of a server's own tools."""

    def __init__(self, server: McpServer, tool: ServerTool, name: str, workspace: Path) -> None:
        description = tool.description or f"{tool.name} of the server {server.settings.name}."
        super().__init__(server, name, description, workspace)
        self.parameters = tool.schema
        self._tool = tool
        if tool.reads or tool.repeatable:
            self.effect = Effect.READ if tool.reads else Effect.REPEATABLE

    @cached_property
    def wants_context(self) -> bool:
        """Whether to pass the turn's context; not if the server has a parameter `ctx` of its own."""
        return "ctx" not in self.parameters["properties"]

    async def execute(self, /, **arguments: Any) -> ToolResult:
        """Call the tool. Any argument names are the server's, even `self`."""
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

        ctx: ToolContext | None = arguments.pop("ctx", None) if self.wants_context else None
        # Uses the session directly: its `call_tool` validates answers by the server's schema, which may be hostile.
        params = CallToolRequestParams(name=self._tool.name, arguments=arguments)
        call = CallToolRequest(params=params)

        async def request(client: "Client", on_progress: Callable[[], None]) -> CallToolResult:
            last_reported = -math.inf

            async def progress(progress: float, total: float | None, message: str | None) -> None:
                nonlocal last_reported
                on_progress()
                now = asyncio.get_running_loop().time()
                if ctx is not None and (message or total) and now - last_reported >= _PROGRESS_INTERVAL_S:
                    last_reported = now
                    ctx.emit(clip_line(message or f"{progress:g} of {total:g}", 200))

            return await client.session.send_request(call, CallToolResult, progress_callback=progress)

        return await self._ask(
            request,
            lambda answer: convert_result(answer, self._received),
            sent=params.arguments,
            repeatable=self.effect is not Effect.ONCE,
        )

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Declare the tool as a whole, unless the server says that it only reads."""
        if self._tool.reads:
            return await super().required_access(arguments, ctx)
        detail = f"{self._tool.name} of the MCP server {self.server.settings.name}"
        return (Access(AccessKind.TOOL, self.name, detail=detail),)

    def validate_params(self, params: dict[str, Any]) -> list[str]:
        """Leave it to the server: the normalized schema says less than its own."""
        return []


class ResourcesTool(_ServerTool):
    effect = Effect.READ
    parameters = takes(uri=string("What to read; without it, available resources are listed"))

    def __init__(self, server: McpServer, name: str, workspace: Path) -> None:
        super().__init__(server, name, f"List or read the resources of the server {server.settings.name}.", workspace)

    async def execute(self, uri: str = "") -> ToolResult:
        """Read the resource, or list what is available."""
        if uri:
            return await self._ask(
                lambda client, _: client.read_resource(uri),
                lambda answer: convert_resource(answer, self._received),
                sent=uri,
                repeatable=True,
            )

        async def request(client: "Client", _: Callable[[], None]) -> str:
            listed = (await client.list_resources()).resources
            lines = [
                f"{resource.uri}  {resource.description or resource.title or resource.name}"
                for resource in listed[:_MAX_LISTED]
            ]
            templates = (await client.list_resource_templates()).resource_templates
            lines += [
                f"{template.uri_template}  {template.description or template.name}"
                for template in templates[:_MAX_LISTED]
            ]
            return "\n".join(clip_line(line, 400) for line in lines) or "There are no resources."

        return await self._ask(request, _text_result, repeatable=True)


class PromptsTool(_ServerTool):
    effect = Effect.READ
    parameters = takes(
        name=string("Name of the prompt; without it, available prompts are listed"),
        arguments={"type": "object", "description": "Its arguments, each a text", "properties": {}},
    )

    def __init__(self, server: McpServer, name: str, workspace: Path) -> None:
        description = f"List the prompts of the server {server.settings.name}, or fill one in and read it."
        super().__init__(server, name, description, workspace)

    async def execute(self, name: str = "", arguments: dict[str, Any] | None = None) -> ToolResult:
        """Return the prompt, or list what is available."""
        if name:
            texts = {
                key: item if isinstance(item, str) else json.dumps(item) for key, item in (arguments or {}).items()
            }
            return await self._ask(
                lambda client, _: client.get_prompt(name, texts),
                lambda answer: convert_prompt(answer, self._received),
                sent=texts,
                repeatable=True,
            )

        async def request(client: "Client", _: Callable[[], None]) -> str:
            prompts = (await client.list_prompts()).prompts[:_MAX_LISTED]
            return "\n".join(clip_line(_format_prompt(prompt), 400) for prompt in prompts) or "There are no prompts."

        return await self._ask(request, _text_result, repeatable=True)


def _format_prompt(prompt: "Prompt") -> str:
    takes = ", ".join(
        argument.name if argument.required else f"{argument.name}?" for argument in prompt.arguments or ()
    )
    return f"{prompt.name}({takes})  {prompt.description or prompt.title or ''}"


async def _text_result(text: str) -> ToolResult:
    return ToolResult(text)


def _hosts_in(value: object) -> tuple[Access, ...]:
    if isinstance(value, str):
        return tuple(Access(AccessKind.HOST, host, detail=url) for host, url in find_hosts(value))
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return tuple(access for item in inner for access in _hosts_in(item))


def tools_of(server: McpServer, taken: AbstractSet[str], workspace: Path) -> list[Tool]:
    """Return a server's enabled tools; none has a name in `taken`."""
    known = {tool.name: tool for tool in server.listing.tools} if server.listing is not None else {}
    tools: list[Tool] = []
    for own_name, name in server.offered_names(taken).items():
        tool = known.get(own_name)
        if tool is None:
            kind = ResourcesTool if own_name == RESOURCES else PromptsTool
            tools.append(kind(server, name, workspace))
        else:
            tools.append(McpTool(server, tool, name, workspace))
    return tools
