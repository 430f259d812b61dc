"""The `image` tool: has an image model draw a picture, and saves it in the workspace."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from nanobot.agent.tools.access import Access
from nanobot.agent.tools.base import Effect, ToolContext, ToolResult, string, takes
from nanobot.agent.tools.disk import FileTool, new_file_mode
from nanobot.errors import ProviderError
from nanobot.messages.types import ToolFailure
from nanobot.providers.base import LLMProvider, call_context, call_context_scope
from nanobot.providers.images import decode_image
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathPolicy
from nanobot.utils.images import SUFFIXES, image_kind
from nanobot.utils.text import human_size


class ImageTool(FileTool):
    name = "image"
    description = (
        "Have an image model draw a picture and save it as a file. It sees the prompt only: describe subject, style, "
        "format (square, landscape, portrait) and any text in the picture. To send the file, use message with media."
    )
    parameters = takes(
        "prompt",
        prompt=string("What to draw, in full sentences"),
        path=string("Where to save it, relative to the workspace (default: images/<date and time>)"),
    )
    effect = Effect.ONCE

    def __init__(self, provider: LLMProvider, paths: PathPolicy) -> None:
        super().__init__(paths)
        self._provider = provider

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        return await super().required_access({"path": _path_of(arguments.get("path"), ctx)}, ctx)

    async def execute(self, prompt: str, path: str | None = None, *, ctx: ToolContext) -> ToolResult:
        """Ask the model and write the file. Cancelling closes the connection; nothing is written then."""
        if not prompt.strip():
            return ToolResult.failed("The prompt is empty. Say what to draw.")
        context = replace(call_context(), cause="image", session_key=ctx.session_key, turn_id=ctx.turn_id)
        try:
            with call_context_scope(context):
                response = await self._provider.chat([{"role": "user", "content": prompt}])
        except ProviderError as error:
            return ToolResult.failed(f"There is no image. {error}")
        data = decode_image(response.content)
        kind = image_kind(data[:32])
        if kind is None:
            text = "The image model sent something that is no image. Nothing was saved."
            return ToolResult.failed(text, ToolFailure.ENDED_BADLY)
        target = str(PurePath(_path_of(path, ctx)).with_suffix(SUFFIXES.get(kind, ".img")))

        def write(files: Opener) -> ToolResult:
            with files.place(target, make=True) as place:
                place.check_permission()
                written = place.replace(data, new_file_mode())
            return ToolResult(f"Saved {kind} ({human_size(len(data))}) as {target}.", written=written)

        return await self.in_thread(target, ctx, write)


def _path_of(path: str | None, ctx: ToolContext) -> str:
    """Where to save an image; its extension is set when its format is known."""
    return path or f"images/{ctx.clock.now():%Y-%m-%d-%H%M%S}.png"
