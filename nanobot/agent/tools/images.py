"""Images for the model: a file is shown as a content block that names a copy of it.

The session stores the copy's path, never its bytes, so that a request after a restart shows the same image whatever
became of the file. Copies lie beside spilled results in the workspace, and are removed after a month without use.
"""

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from nanobot.agent.tools.base import ToolResult
from nanobot.security.files.open import Opener
from nanobot.utils.files import PRIVATE_FILE
from nanobot.utils.images import MAX_FILE_BYTES, ImageError, fit_image, image_kind
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
        copy = _save_copy(files, picture.data, picture.suffix)
    except ImageError as error:
        return ToolResult.failed(f"{path} is {kind} of {human_size(size)}. {error}")
    except OSError as error:
        return ToolResult.failed(f"{path} cannot be shown: its copy was not written ({error.strerror or error}).")
    scaled = "" if picture.size == picture.original_size else f", shown as {picture.size[0]} x {picture.size[1]}"
    width, height = picture.original_size
    text = f"{path} is {kind} of {width} x {height} pixels, {human_size(size)}{scaled}."
    return ToolResult(
        [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": str(copy)}}], display=text
    )


def _save_copy(files: Opener, data: bytes, suffix: str) -> Path:
    """Return the path of a copy; the same bytes have the same path. Raises OSError, PathDeniedError."""
    name = hashlib.sha256(data).hexdigest()[:32] + suffix
    with Opener(files.policy).place(FOLDER / name, make=True) as place:
        place.replace(data, PRIVATE_FILE)
        place.remove_old_neighbours(_RETENTION_DAYS * 86_400)
        return place.real
