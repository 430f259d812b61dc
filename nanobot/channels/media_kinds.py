"""Detects the kind of a file: by its first bytes, then its name, then the declared content type."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PureWindowsPath

from nanobot.errors import NanobotError

HEAD_BYTES = 64
"""How many bytes the detection needs."""
PARTIAL_SUFFIX = ".part"
"""Suffix of an unfinished download."""


class MediaKind(StrEnum):
    """The kind of an attachment."""

    IMAGE = "image"
    VOICE = "voice"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"

    @property
    def may_quote_others(self) -> bool:
        """Whether the model reads content that may not be the sender's own. A voice message is the sender's."""
        return self in (MediaKind.IMAGE, MediaKind.AUDIO)

    @classmethod
    def of_type(cls, content_type: str | None) -> "MediaKind":
        """The kind for a declared content type, such as `image/png`; never VOICE."""
        main = (content_type or "").partition("/")[0].lower()
        return cls(main) if main in (cls.IMAGE, cls.AUDIO, cls.VIDEO) else cls.FILE


class MediaError(NanobotError):
    """An attachment cannot be stored or sent. The text says why."""


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
"""First bytes of formats that are unambiguous. Office files are zip files and keep the suffix of their name."""
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


def detect_suffix(head: bytes, name: str | None, content_type: str | None) -> str:
    """Return the suffix for a file with these first bytes, name and declared content type; `.bin` if unknown."""
    for magic, file_type in _MAGIC:
        if magic.match(head):
            return file_type.suffix
    suffix = PureWindowsPath(name or "").suffix.lower()  # splits at both kinds of slashes
    if is_suffix(suffix):
        return suffix
    declared = (content_type or "").partition(";")[0].strip().lower()
    return _CONTENT_TYPES.get(declared, ".bin")


def is_suffix(suffix: str) -> bool:
    """Whether this is a suffix that a stored file may have."""
    return bool(_SAFE_SUFFIX.match(suffix)) and suffix.lower() != PARTIAL_SUFFIX


def detect_file_kind(path: Path, declared: MediaKind) -> MediaKind:
    """`detect_kind` of a file; `declared` if it cannot be read. Blocking."""
    try:
        with open(path, "rb") as file:
            return detect_kind(file.read(HEAD_BYTES), path.suffix.lower(), declared)
    except OSError:
        return declared


def detect_kind(head: bytes, suffix: str, declared: MediaKind) -> MediaKind:
    """Return the kind of a file with these first bytes and this suffix; `declared` is what the sender says.

    A declared voice message stays one if the file has sound; a declared image that is none becomes FILE.
    """
    kind = next((file_type.kind for magic, file_type in _MAGIC if magic.match(head)), kind_by_suffix(suffix))
    if kind is None:
        return MediaKind.FILE if declared is MediaKind.IMAGE else declared
    if declared in {MediaKind.VOICE, MediaKind.AUDIO} and kind in {MediaKind.AUDIO, MediaKind.VIDEO}:
        return declared  # recordings may use a video container
    return declared if declared is MediaKind.VIDEO and kind is MediaKind.IMAGE else kind  # a GIF may be a video


def kind_by_suffix(suffix: str) -> MediaKind | None:
    """The kind by the suffix alone, or None if unknown."""
    return next((file_type.kind for _, file_type in _MAGIC if file_type.suffix == suffix), _BY_SUFFIX.get(suffix))


def describe_reason(error: BaseException) -> str:
    """Why a file could not be read or downloaded, in a few words."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
