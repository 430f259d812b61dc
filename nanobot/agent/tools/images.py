"""Pictures: how a file is shown to the model, and the `image` tool, which has an image model draw one.

A file is shown as a content block that names a copy of it. The session stores its path, never its bytes, so that a
request after a restart shows the same image whatever became of the file. Copies lie beside spilled results in the
workspace, and are removed after a month without use.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from nanobot.agent.tools.base import Access, Effect, ToolContext, ToolResult, string, takes
from nanobot.agent.tools.disk import FileTool, new_file_mode
from nanobot.errors import ProviderError
from nanobot.messages.types import ToolFailure
from nanobot.providers.base import LLMProvider, call_context, call_context_scope
from nanobot.providers.images import decode_image
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathPolicy
from nanobot.utils.files import PRIVATE_FILE
from nanobot.utils.images import MAX_FILE_BYTES, SUFFIXES, ImageError, fit_image, image_kind
from nanobot.utils.text import human_size

FOLDER = Path(".nanobot/images")
_RETENTION_DAYS = 30


def show_image(files: Opener, path: str, file: BinaryIO) -> ToolResult:
    """Return the result that shows this image. Blocks, up to a second."""
    size = os.fstat(file.fileno()).st_size
    if size > MAX_FILE_BYTES:
        return ToolResult.failed(
            f"{path} is a picture of {human_size(size)}, too large to show. Make it smaller first, with exec."
        )
    data = file.read(MAX_FILE_BYTES)
    kind = image_kind(data[:32]) or "a picture"
    try:
        picture = fit_image(data)
        name = hashlib.sha256(picture.data).hexdigest()[:32] + picture.suffix  # the same bytes have the same path
        with Opener(files.policy).place(FOLDER / name, make=True) as place:
            place.replace(picture.data, PRIVATE_FILE)
            place.remove_old_neighbours(_RETENTION_DAYS * 86_400)
    except ImageError as error:
        return ToolResult.failed(f"{path} is {kind} of {human_size(size)}. {error}")
    except OSError as error:
        return ToolResult.failed(f"{path} cannot be shown: its copy was not written ({error.strerror or error}).")
    scaled = "" if picture.size == picture.original_size else f", shown as {picture.size[0]} x {picture.size[1]}"
    width, height = picture.original_size
    text = f"{path} is {kind} of {width} x {height} pixels, {human_size(size)}{scaled}."
    return ToolResult(
        [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": str(place.real)}}], display=text
    )


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
