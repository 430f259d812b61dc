"""Prepares images for models: fully decoded, upright, small enough, re-encoded.

An image that cannot be decoded completely is rejected: a single bad one in a session would make every later request
fail. Needs Pillow (the extra `images`), imported on first use.
"""

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanobot.errors import NanobotError
from nanobot.utils.installation import install_command
from nanobot.utils.text import human_size

if TYPE_CHECKING:
    from PIL import Image

MAX_SIDE = 1568
"""The resolution that vision models use; more pixels cost without benefit."""
MAX_FILE_BYTES = 32 * 1024 * 1024
_MAX_SENT_BYTES = 1_500_000
_MAX_PIXELS = 50_000_000
_MAX_JPEG_PIXELS = 250_000_000
"""A JPEG is scaled down while it is decoded, so many pixels cost little."""
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
SUFFIXES = {"a PNG image": ".png", "a JPEG image": ".jpg", "a WebP image": ".webp", "a GIF image": ".gif"}
"""File name extensions of the kinds that image models make."""
_FTYP_BRANDS = {b"heic": "a HEIC image", b"heix": "a HEIC image", b"mif1": "a HEIC image", b"avif": "an AVIF image"}


class ImageError(NanobotError):
    """Not an image that can be shown. The text says why, and what to do instead."""


class NoDecoderError(ImageError):
    """Pillow is not installed."""


@dataclass(frozen=True, slots=True)
class FittedImage:
    """An image in a form that every vision model accepts. `original_size` is the size before scaling."""

    data: bytes
    kind: str
    size: tuple[int, int]
    original_size: tuple[int, int]

    @property
    def suffix(self) -> str:
        """The file name extension."""
        return ".png" if self.kind == "image/png" else ".jpg"


def image_kind(head: bytes) -> str | None:
    """The image format by the first bytes of a file; None if it is not an image."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "a WebP image"
    if head[4:8] == b"ftyp":
        return _FTYP_BRANDS.get(head[8:12])
    kind = next((name for magic, name in _MAGIC if head.startswith(magic)), None)
    return None if kind == "a BMP image" and head[6:10] != b"\0\0\0\0" else kind


def fit_image(data: bytes) -> FittedImage:
    """The image as it is sent; unchanged if it is suitable already. Takes up to a second. Raises ImageError."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise NoDecoderError(f"Showing images requires Pillow: {install_command('images')}. Tell the owner.") from error
    Image.init()
    Image.MAX_IMAGE_PIXELS = None  # disables its warning on stderr; we check the size ourselves
    kind = image_kind(data[:32]) or "not an image"
    if kind == "a HEIC image":
        raise ImageError("A HEIC image cannot be decoded here. Ask for it as JPEG or PNG.")
    try:
        with Image.open(io.BytesIO(data), formats=[name for name in _FORMATS if name in Image.OPEN]) as source:
            width, height = original_size = source.size
            if width * height > (_MAX_JPEG_PIXELS if source.format == "JPEG" else _MAX_PIXELS):
                raise ImageError(
                    f"It is {width} x {height} pixels, too many to decode. Make it smaller first, with exec."
                )
            if _can_be_sent_as_is(source, data):
                source.load()  # raises if it is incomplete
                return FittedImage(data, f"image/{str(source.format).lower()}", original_size, original_size)
            photo = source.format in ("JPEG", "WEBP", "AVIF")
            source.draft("RGB", (MAX_SIDE, MAX_SIDE))
            upright = ImageOps.exif_transpose(source)
            upright.thumbnail((MAX_SIDE, MAX_SIDE))
            data, mime = _reencode(upright, photo=photo)
            is_landscape = upright.width > upright.height
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError("It is incomplete or not an image: it cannot be decoded. Fetch it again.") from error
    except Exception as error:  # decoders raise anything for malformed data
        reason = str(error).replace("\n", " ")[:200] or type(error).__name__
        raise ImageError(
            f"It is damaged or incomplete and cannot be decoded ({reason}). Fetch it again, or ask for another format."
        ) from error
    long, short = max(original_size), min(original_size)
    return FittedImage(data, mime, upright.size, (long, short) if is_landscape else (short, long))


def _can_be_sent_as_is(image: "Image.Image", data: bytes) -> bool:
    """Whether the original bytes can be sent, provided they decode."""
    upright = image.getexif().get(0x0112, 1) == 1
    small = max(image.size) <= MAX_SIDE and len(data) <= _MAX_SENT_BYTES
    return upright and small and image.format in ("PNG", "JPEG") and image.mode in ("1", "L", "LA", "P", "RGB", "RGBA")


def _reencode(image: "Image.Image", *, photo: bool) -> tuple[bytes, str]:
    """Encode for sending: as PNG for drawings if that is small enough, else as JPEG."""
    transparent = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    if not photo:
        data = _encode(image.convert("RGBA" if transparent else "RGB"), "PNG", optimize=False)
        if len(data) <= _MAX_SENT_BYTES:
            return data, "image/png"
    if transparent:
        from PIL import Image

        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image.convert("RGBA"))
    flat = image.convert("RGB")
    for quality in (85, 70, 50, 30):
        data = _encode(flat, "JPEG", quality=quality)
        if len(data) <= _MAX_SENT_BYTES:
            return data, "image/jpeg"
    raise ImageError(f"It cannot be compressed below {human_size(len(data))}, which is too large to send.")


def _encode(image: "Image.Image", name: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, name, **options)
    return buffer.getvalue()
