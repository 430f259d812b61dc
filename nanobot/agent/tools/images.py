"""Pictures for the model: a file is shown as a block that names a copy of it, made for that.

The copy is what the session keeps: its path, never its bytes, so that a request after a restart shows the same picture
whatever has become of the file. Copies lie beside spilled results in the workspace, and go when nobody needed them for
a month.
"""

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from nanobot.agent.tools.base import ToolResult
from nanobot.security.opening import Opener
from nanobot.utils.files import PRIVATE_FILE
from nanobot.utils.pictures import LARGEST_FILE, PictureError, fitted, picture_kind
from nanobot.utils.text import human_size

FOLDER = Path(".nanobot/images")
_KEPT_DAYS = 30


def shown_picture(files: Opener, path: str, file: BinaryIO) -> ToolResult:
    """The result that shows this picture. Blocking, up to a second."""
    size = os.fstat(file.fileno()).st_size
    if size > LARGEST_FILE:
        return ToolResult.failed(
            f"{path} is a picture of {human_size(size)}, too large to show. Make it smaller first, with exec."
        )
    data = file.read(LARGEST_FILE)
    kind = picture_kind(data[:32]) or "a picture"
    try:
        picture = fitted(data)
        copy = _kept(files, picture.data, picture.suffix)
    except PictureError as error:
        return ToolResult.failed(f"{path} is {kind} of {human_size(size)}. {error}")
    except OSError as error:
        return ToolResult.failed(f"{path} cannot be shown: its copy was not written ({error.strerror or error}).")
    scaled = "" if picture.size == picture.came else f", shown as {picture.size[0]} x {picture.size[1]}"
    text = f"{path} is {kind} of {picture.came[0]} x {picture.came[1]} pixels, {human_size(size)}{scaled}."
    return ToolResult(
        [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": str(copy)}}], display=text
    )


def _kept(files: Opener, data: bytes, suffix: str) -> Path:
    """Where a copy of these bytes lies; the same bytes always at the same place. Raises OSError, PathDeniedError."""
    name = hashlib.sha256(data).hexdigest()[:32] + suffix
    with Opener(files.policy).place(FOLDER / name, make=True) as place:
        place.replace(data, PRIVATE_FILE)
        place.remove_old_neighbours(_KEPT_DAYS * 86_400)
        return place.real
