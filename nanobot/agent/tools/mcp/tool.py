"""The tools of a server: one for each of its own, one for its resources and one for its prompts.

Answers become results for the model: texts joined, images as blocks, the rest as files.
https://modelcontextprotocol.io/specification/2025-11-25/server/tools#tool-result
"""

import asyncio
import base64
import hashlib
import json
import math
import mimetypes
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.agent.tools.base import Access, AccessKind, Effect, Tool, ToolContext, ToolResult, string, takes, texts_in
from nanobot.agent.tools.mcp.listing import ServerTool
from nanobot.agent.tools.mcp.server import RESOURCES, McpServer, ServerFailedError
from nanobot.messages.types import Provenance, ToolFailure
from nanobot.net.urls import find_hosts
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.security.secrets import find_secret
from nanobot.utils.files import PRIVATE_FILE
from nanobot.utils.text import clip, clip_line

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import BlobResourceContents, ContentBlock, TextResourceContents

MAX_FILE_BYTES = 32 * 1024 * 1024
MAX_BLOCKS = 500
MAX_TEXT_BESIDE_IMAGES = 16_000
"""Characters of a text beside images. A text alone may be longer: the run saves all of it in a file."""
_IMAGES = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}

MAX_CALL_S = 3600.0
"""A call that reports progress may exceed the timeout, but not this."""
_PROGRESS_INTERVAL_S = 0.2
_MAX_LISTED = 200

Part = str | dict[str, Any]
"""A text, or an image block."""
Request = Callable[["Client", Callable[[], None]], Awaitable[ToolResult]]
"""Asks the server. It gets a function to call when the server makes progress."""


class ReceivedFiles:
    """Converts a server's answers. Their files go to a folder, named by their content, so none is stored twice."""

    def __init__(self, workspace: Path) -> None:
        self._folder = workspace / ".nanobot" / "received"
        self._files = Opener(PathPolicy(workspace))

    async def convert(self, block: "ContentBlock") -> Part:
        """Convert a part of an answer."""
        match block.type:
            case "text":
                return block.text
            case "image" | "audio":
                return await self._part(block.type, block.data, block.mime_type)
            case "resource_link":
                about = " ".join(part for part in (block.title or block.name, block.description) if part)
                return f"[resource: {block.uri}] {about}".rstrip()
        return await self.convert_resource(block.resource)

    async def convert_resource(self, resource: "TextResourceContents | BlobResourceContents") -> Part:
        text: str | None = getattr(resource, "text", None)
        if text is not None:
            return text
        kind = "image" if resource.mime_type in _IMAGES else "file"
        return await self._part(kind, getattr(resource, "blob", ""), resource.mime_type)

    async def _part(self, kind: str, data: str, mime_type: str | None) -> Part:
        """Save the data, and return the image block, or a text that names the file."""
        path = await asyncio.to_thread(self._save, data, (mime_type or "").split(";")[0].strip().lower())
        if path is not None and path.suffix in _IMAGES.values():
            return {"type": "image_url", "image_url": {"url": str(path)}}
        return f"[{kind}: {path if path is not None else 'could not be saved'}]"

    def _save(self, data: str, mime_type: str) -> Path | None:
        """Decode and save the data; None if it is too large, broken, or cannot be written."""
        if len(data) > MAX_FILE_BYTES * 4 // 3:
            return None
        try:
            content = base64.b64decode(data, validate=False)
            name = hashlib.sha256(content).hexdigest()[:20]
            path = self._folder / f"{name}{_IMAGES.get(mime_type) or mimetypes.guess_extension(mime_type) or '.bin'}"
            with self._files.own_location(path) as place:
                place.replace(content, PRIVATE_FILE)
        except (OSError, ValueError, PathDeniedError):
            return None
        return path


def _join(parts: list[Part]) -> str | list[dict[str, Any]]:
    """Join to one text; with images, a block for each part."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "\n".join(texts)
    return [
        {"type": "text", "text": clip(part, MAX_TEXT_BESIDE_IMAGES)} if isinstance(part, str) else part
        for part in parts
    ]


class _ServerTool(Tool):
    """What all tools of a server share: timeout and error texts."""

    provenance = Provenance.MCP

    def __init__(self, server: McpServer, name: str, description: str, workspace: Path) -> None:
        self.server = server
        self.source = f"the MCP server {server.name}"
        self.name = name
        self.description = description
        self._received = ReceivedFiles(workspace)

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Declare the hosts in the arguments, to which the server could carry data."""
        return [
            Access(AccessKind.HOST, host, detail=url) for text in texts_in(arguments) for host, url in find_hosts(text)
        ]

    async def _ask(self, request: Request, sent: object, *, repeatable: bool = True) -> ToolResult:
        """Send a request whose content is `sent`.

        Refuses to send secrets: those the server needs are in its environment or headers.
        """
        if (secret := find_secret(json.dumps(sent, ensure_ascii=False, default=str))) is not None:
            return ToolResult.failed(
                f"{self.name} was not called: its arguments hold the secret {secret}, and no tool sends secrets.",
                ToolFailure.NOT_RUN,
            )
        await asyncio.to_thread(import_module, "mcp")  # 0.6 s of imports, off the event loop
        from mcp.shared.exceptions import MCPError

        timeout_s = self.server.config.tool_timeout
        loop = asyncio.get_running_loop()
        last = loop.time() + MAX_CALL_S
        try:
            # Connecting has a timeout of its own, so the call's timeout starts with the call.
            async with asyncio.timeout(None) as deadline:

                def on_progress() -> None:
                    with suppress(RuntimeError):  # progress came after the timeout
                        deadline.reschedule(min(loop.time() + timeout_s, last))

                async def start(client: "Client") -> ToolResult:
                    on_progress()
                    return await request(client, on_progress)

                return await self.server.ask(start, repeatable=repeatable)
        except TimeoutError:
            return ToolResult.failed(
                f"{self.name} did not answer within {timeout_s:g} s and was told to stop. It may have been done all "
                f"the same. Ask for less; the owner can raise tools.mcpServers.{self.server.name}.toolTimeout."
            )
        except ServerFailedError as error:
            return ToolResult.failed(str(error))
        except MCPError as error:
            return ToolResult.failed(f"{self.name} was refused by its server: {clip(error.message, 2000)}")
        except ValueError as error:  # pydantic's too
            return ToolResult.failed(f"{self.name} got an invalid answer from its server: {clip(str(error), 500)}")


class McpTool(_ServerTool):
    """One of a server's own tools."""

    def __init__(self, server: McpServer, tool: ServerTool, name: str, workspace: Path) -> None:
        super().__init__(server, name, tool.description or f"{tool.name} of the server {server.name}.", workspace)
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
        ctx: ToolContext | None = arguments.pop("ctx", None) if self.wants_context else None

        async def request(client: "Client", on_progress: Callable[[], None]) -> ToolResult:
            from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

            # Uses the session directly: its `call_tool` validates answers by the server's schema, which may be hostile.
            call = CallToolRequest(params=CallToolRequestParams(name=self._tool.name, arguments=arguments))
            last_reported = -math.inf

            async def progress(progress: float, total: float | None, message: str | None) -> None:
                nonlocal last_reported
                on_progress()
                now = asyncio.get_running_loop().time()
                if ctx is not None and (message or total) and now - last_reported >= _PROGRESS_INTERVAL_S:
                    last_reported = now
                    ctx.emit(clip_line(message or f"{progress:g} of {total:g}", 200))

            answer = await client.session.send_request(call, CallToolResult, progress_callback=progress)
            parts = [await self._received.convert(block) for block in answer.content[:MAX_BLOCKS]]
            if len(answer.content) > MAX_BLOCKS:
                parts.append(f"[there are more than {MAX_BLOCKS} parts; the rest is left out]")
            content = _join(parts)
            if not content and answer.structured_content is not None:
                content = json.dumps(answer.structured_content, ensure_ascii=False)
            if answer.is_error:
                return ToolResult(content or "Error: the server gave no reason.", error=True)
            return ToolResult(content or "The tool ended and returned nothing.")

        return await self._ask(request, arguments, repeatable=self.effect is not Effect.ONCE)

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Declare the tool as a whole, unless the server says that it only reads."""
        if self._tool.reads:
            return await super().required_access(arguments, ctx)
        detail = f"{self._tool.name} of the MCP server {self.server.name}"
        return (Access(AccessKind.TOOL, self.name, detail=detail),)

    def validate_params(self, params: dict[str, Any]) -> list[str]:
        """Leave it to the server: the normalized schema says less than its own."""
        return []


class ResourcesTool(_ServerTool):
    effect = Effect.READ
    parameters = takes(uri=string("What to read; without it, available resources are listed"))

    async def execute(self, uri: str = "") -> ToolResult:
        """Read the resource, or list what is available."""

        async def request(client: "Client", _: Callable[[], None]) -> ToolResult:
            if uri:
                contents = (await client.read_resource(uri)).contents[:MAX_BLOCKS]
                parts = [await self._received.convert_resource(content) for content in contents]
                return ToolResult(_join(parts) or "The resource is empty.")
            resources = (await client.list_resources()).resources[:_MAX_LISTED]
            templates = (await client.list_resource_templates()).resource_templates[:_MAX_LISTED]
            lines = [
                f"{resource.uri}  {resource.description or resource.title or resource.name}" for resource in resources
            ]
            lines += [f"{template.uri_template}  {template.description or template.name}" for template in templates]
            return ToolResult("\n".join(clip_line(line, 400) for line in lines) or "There are no resources.")

        return await self._ask(request, uri)


class PromptsTool(_ServerTool):
    effect = Effect.READ
    parameters = takes(
        name=string("Name of the prompt; without it, available prompts are listed"),
        arguments={"type": "object", "description": "Its arguments, each a text", "properties": {}},
    )

    async def execute(self, name: str = "", arguments: dict[str, Any] | None = None) -> ToolResult:
        """Return the prompt, or list what is available."""
        texts = {key: item if isinstance(item, str) else json.dumps(item) for key, item in (arguments or {}).items()}

        async def request(client: "Client", _: Callable[[], None]) -> ToolResult:
            if name:
                answer = await client.get_prompt(name, texts)
                parts: list[Part] = [answer.description] if answer.description else []
                for message in answer.messages[:MAX_BLOCKS]:
                    block = await self._received.convert(message.content)
                    parts += [f"{message.role}: {block}"] if isinstance(block, str) else [f"{message.role}:", block]
                return ToolResult(_join(parts) or "The prompt is empty.")
            lines = []
            for prompt in (await client.list_prompts()).prompts[:_MAX_LISTED]:
                takes = (f"{argument.name}{'' if argument.required else '?'}" for argument in prompt.arguments or ())
                lines.append(f"{prompt.name}({', '.join(takes)})  {prompt.description or prompt.title or ''}")
            return ToolResult("\n".join(clip_line(line, 400) for line in lines) or "There are no prompts.")

        return await self._ask(request, [name, texts])


def tools_of(server: McpServer, taken: AbstractSet[str], workspace: Path) -> list[Tool]:
    """Return a server's enabled tools; none has a name in `taken`."""
    known = {tool.name: tool for tool in server.listing.tools} if server.listing is not None else {}
    tools: list[Tool] = []
    for own_name, name in server.offered_names(taken).items():
        if (tool := known.get(own_name)) is not None:
            tools.append(McpTool(server, tool, name, workspace))
        elif own_name == RESOURCES:
            about = f"List or read the resources of the server {server.name}."
            tools.append(ResourcesTool(server, name, about, workspace))
        else:
            about = f"List the prompts of the server {server.name}, or fill one in and read it."
            tools.append(PromptsTool(server, name, about, workspace))
    return tools
