"""Pictures as models take them: really decoded, turned upright, made small enough, and written anew.

What cannot be decoded whole is told and never sent: one bad picture in a session would make every later request fail.
Needs Pillow (the extra `images`), which is imported when the first picture comes.
"""

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanobot.errors import NanobotError
from nanobot.utils.extras import install_command
from nanobot.utils.text import human_size

if TYPE_CHECKING:
    from PIL import Image

LONGEST_SIDE = 1568
"""What vision models look at; more pixels are paid for and thrown away."""
LARGEST_FILE = 32 * 1024 * 1024
_LARGEST_SENT = 1_500_000
_MOST_PIXELS = 50_000_000
_MOST_PIXELS_OF_A_JPEG = 250_000_000
"""A JPEG is made small while it is decoded, so that many pixels cost little."""
_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "PPM", "ICO")
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"BM", "a BMP image"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
)
_FAMILIES = {b"heic": "a HEIC image", b"heix": "a HEIC image", b"mif1": "a HEIC image", b"avif": "an AVIF image"}


class PictureError(NanobotError):
    """This cannot be shown as a picture. The text says why, and what to do instead."""


class NoDecoderError(PictureError):
    """Pillow is not installed."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that any model takes that takes pictures. `came` is how large it was before."""

    data: bytes
    kind: str
    size: tuple[int, int]
    came: tuple[int, int]

    @property
    def suffix(self) -> str:
        """What a file of it ends in."""
        return ".png" if self.kind == "image/png" else ".jpg"


def picture_kind(head: bytes) -> str | None:
    """What kind of picture the first bytes of a file are of; None for anything else."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "a WebP image"
    if head[4:8] == b"ftyp":
        return _FAMILIES.get(head[8:12])
    what = next((name for magic, name in _MAGIC if head.startswith(magic)), None)
    return None if what == "a BMP image" and head[6:10] != b"\0\0\0\0" else what


def fitted(data: bytes) -> Picture:
    """The picture in these bytes, as it is sent: the very bytes where they are fit for it. Takes up to a second.

    Raises PictureError.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise NoDecoderError(
            f"Pictures can be shown where Pillow is installed: {install_command('images')}. Tell the owner."
        ) from error
    Image.init()
    Image.MAX_IMAGE_PIXELS = None  # it would warn on stderr of what is judged here
    kind = picture_kind(data[:32]) or "no picture"
    if kind == "a HEIC image":
        raise PictureError("A HEIC image cannot be decoded here. Ask for it as JPEG or PNG.")
    try:
        with Image.open(io.BytesIO(data), formats=[name for name in _FORMATS if name in Image.OPEN]) as opened:
            came = opened.size
            if came[0] * came[1] > (_MOST_PIXELS_OF_A_JPEG if opened.format == "JPEG" else _MOST_PIXELS):
                raise PictureError(
                    f"It is {came[0]} x {came[1]} pixels, too many to decode. Make it smaller first, with exec."
                )
            if _is_fit(opened, data):
                opened.load()  # it must be whole
                return Picture(data, f"image/{str(opened.format).lower()}", came, came)
            photo = opened.format in ("JPEG", "WEBP", "AVIF")
            opened.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))
            upright = ImageOps.exif_transpose(opened)
            upright.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
            data, mime = _written(upright, photo=photo)
            turned = upright.width > upright.height
    except PictureError:
        raise
    except UnidentifiedImageError as error:
        raise PictureError("It is not whole, or no picture at all: it cannot be decoded. Get it anew.") from error
    except Exception as error:  # a decoder of hostile bytes raises whatever it likes
        said = str(error).replace("\n", " ")[:200] or type(error).__name__
        raise PictureError(
            f"It is damaged or not whole and cannot be decoded ({said}). Get it anew, or ask for it in another format."
        ) from error
    long, short = max(came), min(came)
    return Picture(data, mime, upright.size, (long, short) if turned else (short, long))


def _is_fit(image: "Image.Image", data: bytes) -> bool:
    """Whether it needs no change, if it can be decoded."""
    upright = image.getexif().get(0x0112, 1) == 1
    small = max(image.size) <= LONGEST_SIDE and len(data) <= _LARGEST_SENT
    return upright and small and image.format in ("PNG", "JPEG") and image.mode in ("1", "L", "LA", "P", "RGB", "RGBA")


def _written(image: "Image.Image", *, photo: bool) -> tuple[bytes, str]:
    """The bytes to send: sharp for drawings where that is small, else as a photo."""
    clear = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    if not photo:
        data = _encoded(image.convert("RGBA" if clear else "RGB"), "PNG", optimize=False)
        if len(data) <= _LARGEST_SENT:
            return data, "image/png"
    flat = _on_white(image) if clear else image.convert("RGB")
    for quality in (85, 70, 50, 30):
        data = _encoded(flat, "JPEG", quality=quality)
        if len(data) <= _LARGEST_SENT:
            return data, "image/jpeg"
    raise PictureError(f"It does not get smaller than {human_size(len(data))}, too much to send.")


def _on_white(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    clear = image.convert("RGBA")
    white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, clear).convert("RGB")


def _encoded(image: "Image.Image", name: str, **how: object) -> bytes:
    out = io.BytesIO()
    image.save(out, name, **how)
    return out.getvalue()
