"""Files as text, and back: encodings, line endings, pages of lines, and a piece of text found and replaced.

What is not changed stays as it is, byte for byte: BOM, encoding, line endings, even bytes that are no UTF-8.
"""

import codecs
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from nanobot.errors import NanobotError
from nanobot.utils.text import clip_line, human_size

LINE_CHARS = 2_000
_CHUNK = 64 * 1024
_SNIFFED = 8 * 1024
_COUNT_CAP = 16 * 1024 * 1024
"""Only files up to this size are read to their end to know how many lines they have."""

_BOMS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_MAGIC = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"RIFF", "a RIFF file (WebP image, WAV or AVI)"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive (or an Office document)"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"\x7fELF", "a Linux program"),
    (b"MZ", "a Windows program"),
    (b"\xca\xfe\xba\xbe", "compiled code"),
    (b"SQLite format 3", "an SQLite database"),
    (b"ID3", "an MP3 recording"),
    (b"OggS", "an Ogg recording"),
    (b"fLaC", "a FLAC recording"),
    (b"\xd0\xcf\x11\xe0", "an old Office document"),
)


class NotTextError(NanobotError):
    """A file that is no text. `{path}` in the message stands for its path."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A whole file as text. Bytes that are no text of its encoding are kept as surrogates, and written back as such."""

    text: str
    bom: bytes
    encoding: str

    @classmethod
    def parse(cls, data: bytes) -> "TextFile":
        """Raises NotTextError for binary data."""
        bom, encoding = _encoding_of(data[:_SNIFFED], len(data))
        errors = "surrogateescape" if encoding == "utf-8" else "strict"
        try:
            return cls(data[len(bom) :].decode(encoding, errors), bom, encoding)
        except UnicodeDecodeError as error:
            raise NotTextError(f"{{path}} is damaged text ({encoding}) and cannot be changed safely.") from error

    def with_text(self, text: str) -> bytes:
        """Another text in the same dress."""
        kept = "surrogateescape" if self.encoding == "utf-8" else "replace"
        try:
            return self.bom + text.encode(self.encoding, kept)
        except UnicodeEncodeError:  # half a character in what a model wrote
            return self.bom + text.encode(self.encoding, "replace")


@dataclass(slots=True)
class Page:
    """Some lines of a file."""

    lines: list[str] = field(default_factory=list)
    more: bool = False
    total: int | None = None
    """Lines of the whole file, where it was small enough to count."""
    file_size: int = 0
    size_seen: int = 0
    remarks: list[str] = field(default_factory=list)


def read_page(file: BinaryIO, offset: int, count: int, max_chars: int) -> Page:
    """Lines from `offset` (1 is the first) on, until `count` or `max_chars` is reached; one line at least.

    Reads as a stream: a huge file, or a huge line, costs a page of memory. Raises NotTextError for binary files.
    """
    head = file.read(_SNIFFED)
    page = Page(file_size=max(os.fstat(file.fileno()).st_size, len(head)), size_seen=len(head))
    bom, encoding = _encoding_of(head, page.file_size)
    file.seek(len(bom))
    errors = "surrogateescape" if encoding == "utf-8" else "replace"
    reader = io.TextIOWrapper(file, encoding, errors, newline="\n")
    number, room, crlf, broken, cut = 0, max_chars, False, False, False
    for line, length in _lines(reader):
        number += 1
        if number < offset:
            continue
        shown = clip_line(line.rstrip("\r\n"), LINE_CHARS)
        if length > len(line):  # longer than what was read of it
            shown = f"{line[:LINE_CHARS]}... [{length - LINE_CHARS} more characters]"
        room -= len(shown) + 7
        if len(page.lines) == count or (room < 0 and page.lines):
            page.more = True
            break
        crlf, cut = crlf or line.endswith("\r\n"), cut or len(shown) > LINE_CHARS
        sound = _without_surrogates(shown)
        broken = broken or sound != shown
        page.lines.append(sound)
    if not page.more:
        page.total = number
    elif page.file_size <= _COUNT_CAP:
        page.total = number + sum(1 for _ in _lines(reader))
    reader.detach()
    page.remarks = [
        remark
        for holds, remark in (
            (encoding != "utf-8", f"The file is {encoding.upper()}."),
            (crlf, "Lines end in CRLF."),
            (broken, "Bytes that are not UTF-8 are shown as \ufffd."),
            (cut, "Long lines are cut."),
        )
        if holds
    ]
    return page


def page_of(lines: list[str], offset: int, count: int, max_chars: int) -> Page:
    """The same of lines that are in memory already."""
    page = Page(total=len(lines))
    room = max_chars
    for line in lines[offset - 1 :]:
        shown = clip_line(line, LINE_CHARS)
        room -= len(shown) + 7
        if len(page.lines) == count or (room < 0 and page.lines):
            page.more = True
            break
        page.lines.append(shown)
    return page


def numbered(lines: list[str], first: int) -> str:
    """Lines with their numbers before them."""
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines, first))


def find_all(text: str, wanted: str) -> list[int]:
    """The line of each place where the wanted text stands. LF in it matches CRLF and the other way round."""
    pattern = re.compile(f"(?={_loose(wanted)})")
    places, line, seen = [], 1, 0
    for match in pattern.finditer(text):
        line += text.count("\n", seen, match.start())
        seen = match.start()
        places.append(line)
    return places


def replaced(text: str, old: str, new: str, *, every: bool) -> tuple[str, int]:
    """The text with the first or every `old` as `new`, and how many there were. New lines end as the file's do."""
    endings = text.count("\r\n")
    if "\n" in text:
        ending = "\r\n" if endings * 2 > text.count("\n") else "\n"
        new = new.replace("\r\n", "\n").replace("\n", ending)
    return re.subn(_loose(old), lambda _: new, text, count=0 if every else 1)


def _loose(wanted: str) -> str:
    """A pattern for the text with any line endings. An LF does not match from the middle of a CRLF."""
    parts = [re.escape(part) for part in re.split(r"\r?\n", wanted)]
    return r"\r?\n".join(parts) if parts[0] else r"(?<!\r)" + r"\r?\n".join(parts)


def _lines(reader: io.TextIOWrapper) -> Iterator[tuple[str, int]]:
    """Each line, no more of it than a chunk, and its whole length."""
    while head := reader.readline(_CHUNK):
        length, piece = len(head), head
        while not piece.endswith("\n") and (piece := reader.readline(_CHUNK)):
            length += len(piece.rstrip("\r\n"))
        yield head, length


def _encoding_of(head: bytes, size: int) -> tuple[bytes, str]:
    """The BOM and the encoding of a file by its first bytes. Raises NotTextError for binary ones."""
    for bom, encoding in _BOMS:
        if head.startswith(bom):
            return bom, encoding
    what = next((name for magic, name in _MAGIC if head.startswith(magic)), None)
    if b"\0" in head or (what is not None and not _is_utf8(head)):
        raise NotTextError(
            f"{{path}} is {what or 'a binary file'} of {human_size(size)}, not text. "
            "It is not shown; use exec with a program made for it."
        )
    return b"", "utf-8"


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="surrogateescape").decode(errors="replace")
    return text
