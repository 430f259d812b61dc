"""What an attachment is: by its first bytes before its name, and by its name before what its sender says of it."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PureWindowsPath

from nanobot.errors import NanobotError

HEAD = 64
"""Bytes that tell what a file is."""
PARTIAL = ".part"
"""How a file ends that is half there."""


class MediaKind(StrEnum):
    """What an attachment is to a person."""

    IMAGE = "image"
    VOICE = "voice"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"

    @classmethod
    def of_type(cls, content_type: str | None) -> "MediaKind":
        """By what a platform says of it, such as `image/png`; a voice no content type tells."""
        main = (content_type or "").partition("/")[0].lower()
        return cls(main) if main in (cls.IMAGE, cls.AUDIO, cls.VIDEO) else cls.FILE


class MediaError(NanobotError):
    """An attachment cannot be sent. The text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class _Type:
    suffix: str
    kind: MediaKind


_MAGIC: tuple[tuple["re.Pattern[bytes]", _Type], ...] = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), _Type(".png", MediaKind.IMAGE)),
    (re.compile(rb"\xff\xd8\xff"), _Type(".jpg", MediaKind.IMAGE)),
    (re.compile(rb"GIF8[79]a"), _Type(".gif", MediaKind.IMAGE)),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), _Type(".webp", MediaKind.IMAGE)),
    (re.compile(rb"....ftyp(?:heic|heix|mif1)", re.DOTALL), _Type(".heic", MediaKind.IMAGE)),
    (re.compile(rb"....ftypavif", re.DOTALL), _Type(".avif", MediaKind.IMAGE)),
    (re.compile(rb"BM....\x00\x00\x00\x00", re.DOTALL), _Type(".bmp", MediaKind.IMAGE)),
    (re.compile(rb"OggS"), _Type(".ogg", MediaKind.AUDIO)),
    (re.compile(rb"RIFF....WAVE", re.DOTALL), _Type(".wav", MediaKind.AUDIO)),
    (re.compile(rb"fLaC"), _Type(".flac", MediaKind.AUDIO)),
    (re.compile(rb"ID3|\xff[\xfb\xf3\xf2]"), _Type(".mp3", MediaKind.AUDIO)),
    (re.compile(rb"#!AMR"), _Type(".amr", MediaKind.AUDIO)),
    (re.compile(rb"....ftypM4A", re.DOTALL), _Type(".m4a", MediaKind.AUDIO)),
    (re.compile(rb"....ftypqt", re.DOTALL), _Type(".mov", MediaKind.VIDEO)),
    (re.compile(rb"....ftyp", re.DOTALL), _Type(".mp4", MediaKind.VIDEO)),
    (re.compile(rb"\x1a\x45\xdf\xa3"), _Type(".webm", MediaKind.VIDEO)),
    (re.compile(rb"%PDF-"), _Type(".pdf", MediaKind.FILE)),
)
"""How files begin whose form nothing else shares; Office files are zips, and keep the end of their name."""
_CONTENT_TYPES = {
    "image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp", "image/svg+xml": ".svg",
    "audio/ogg": ".ogg", "audio/mpeg": ".mp3", "audio/mp4": ".m4a", "audio/wav": ".wav", "audio/webm": ".webm",
    "audio/aac": ".aac", "audio/amr": ".amr", "video/mp4": ".mp4", "video/webm": ".webm", "video/quicktime": ".mov",
    "application/pdf": ".pdf", "application/json": ".json", "application/zip": ".zip", "text/plain": ".txt",
    "text/markdown": ".md", "text/csv": ".csv", "text/html": ".html", "text/calendar": ".ics",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
}  # fmt: skip
_BY_SUFFIX = {".svg": MediaKind.IMAGE, ".aac": MediaKind.AUDIO, ".opus": MediaKind.AUDIO}
_SAFE_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}\Z")


def suffix_of(head: bytes, name: str | None, content_type: str | None) -> str:
    """How a file should end that begins like this: by its bytes, else by its name, else by what its sender says."""
    for magic, is_type in _MAGIC:
        if magic.match(head):
            if is_type.suffix == ".webm" and (content_type or "").startswith("audio/"):
                return ".webm"
            return is_type.suffix
    named = PureWindowsPath(name or "").suffix.lower()  # takes both kinds of slashes for what they are
    if _SAFE_SUFFIX.match(named) and named != PARTIAL:
        return named
    said = (content_type or "").partition(";")[0].strip().lower()
    return _CONTENT_TYPES.get(said, ".bin")


def kind_of_file(path: Path, said: MediaKind) -> MediaKind:
    """What it really is. A voice stays one where it is sound; a "picture" that is none is a file."""
    try:
        with open(path, "rb") as file:
            return kind_of_head(file.read(HEAD), path.suffix.lower(), said)
    except OSError:
        return said


def kind_of_head(head: bytes, suffix: str, said: MediaKind) -> MediaKind:
    """What a file is that begins and ends like this; `said`: what its sender says."""
    found = next((one.kind for magic, one in _MAGIC if magic.match(head)), kind_by_suffix(suffix))
    if found is None:
        return MediaKind.FILE if said is MediaKind.IMAGE else said
    if said in {MediaKind.VOICE, MediaKind.AUDIO} and found in {MediaKind.AUDIO, MediaKind.VIDEO}:
        return said  # a recording may come in a film's box
    return said if said is MediaKind.VIDEO and found is MediaKind.IMAGE else found  # a moving picture may be a GIF


def kind_by_suffix(suffix: str) -> MediaKind | None:
    """What a file is by the end of its name alone."""
    return next((one.kind for _, one in _MAGIC if one.suffix == suffix), _BY_SUFFIX.get(suffix))


def reason_of(error: BaseException) -> str:
    """Why it could not be read or had, in a few words."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
