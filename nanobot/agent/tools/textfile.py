"""Files as text: encodings, line endings, pages of lines, finding and replacing text, and differences.

Unchanged parts stay as they are, byte for byte: BOM, encoding, line endings, even bytes that are not UTF-8.
"""

import codecs
import difflib
import io
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from nanobot.errors import NanobotError
from nanobot.utils.text import clip_line, human_size

LINE_CHARS = 2_000
PAGE_CHARS = 15_000
_CHUNK = 64 * 1024
_SNIFFED = 8 * 1024
_COUNT_CAP = 16 * 1024 * 1024
"""Lines are counted only in files up to this size."""

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
    """The file is not text. `{path}` in the message stands for its path."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A whole file as text. Bytes that are invalid in its encoding become surrogates, and are written back as such."""

    text: str
    bom: bytes
    encoding: str

    @classmethod
    def parse(cls, data: bytes) -> "TextFile":
        """Decode the data. Raises NotTextError for binary data."""
        bom, encoding = _encoding_of(data[:_SNIFFED], len(data))
        errors = "surrogateescape" if encoding == "utf-8" else "strict"
        try:
            return cls(data[len(bom) :].decode(encoding, errors), bom, encoding)
        except UnicodeDecodeError as error:
            raise NotTextError(f"{{path}} is damaged text ({encoding}) and cannot be changed safely.") from error

    def with_text(self, text: str) -> bytes:
        """Encode another text in the same encoding, with the same BOM."""
        errors = "surrogateescape" if self.encoding == "utf-8" else "replace"
        try:
            return self.bom + text.encode(self.encoding, errors)
        except UnicodeEncodeError:  # the model wrote half a surrogate pair
            return self.bom + text.encode(self.encoding, "replace")


@dataclass(slots=True)
class TextPage:
    lines: list[str] = field(default_factory=list)
    more: bool = False
    total: int | None = None
    """Lines of the whole file, if it was small enough to count."""
    file_size: int = 0
    remarks: list[str] = field(default_factory=list)


def read_page(file: BinaryIO, offset: int, count: int) -> TextPage:
    """Read lines from `offset` (1 is the first), until `count` or PAGE_CHARS is reached; at least one line.

    Reads as a stream: a huge file, or a huge line, costs a page of memory. Raises NotTextError for binary files.
    """
    head = file.read(_SNIFFED)
    size = max(os.fstat(file.fileno()).st_size, len(head))
    bom, encoding = _encoding_of(head, size)
    file.seek(len(bom))
    errors = "surrogateescape" if encoding == "utf-8" else "replace"
    reader = io.TextIOWrapper(file, encoding, errors, newline="\n")
    lines = _lines(reader)
    page = _fill_page(lines, offset, count)
    page.file_size = size
    if page.more and page.total is not None:
        page.total = page.total + sum(1 for _ in lines) if size <= _COUNT_CAP else None
    reader.detach()
    if encoding != "utf-8":
        page.remarks.insert(0, f"The file is {encoding.upper()}.")
    return page


def page_lines(lines: list[str], offset: int, count: int) -> TextPage:
    """Return such a page of lines that are in memory."""
    page = _fill_page(((line, len(line)) for line in lines), offset, count)
    page.total = len(lines)
    return page


def _fill_page(lines: Iterator[tuple[str, int]], offset: int, count: int) -> TextPage:
    """Take the lines of a page, with their whole lengths: `total` is the number of the last one that was looked at."""
    page, number, remaining, crlf, broken, cut = TextPage(), 0, PAGE_CHARS, False, False, False
    for number, (line, length) in enumerate(lines, 1):
        if number < offset:
            continue
        shown = clip_line(line.rstrip("\r\n"), LINE_CHARS)
        if length > len(line):  # only its beginning was read
            shown = f"{line[:LINE_CHARS]}... [{length - LINE_CHARS} more characters]"
        remaining -= len(shown) + 7
        if len(page.lines) == count or (remaining < 0 and page.lines):
            page.more = True
            break
        crlf, cut = crlf or line.endswith("\r\n"), cut or len(shown) > LINE_CHARS
        printable = _replace_surrogates(shown)
        broken = broken or printable != shown
        page.lines.append(printable)
    page.total = number
    remarks = {
        "Lines end in CRLF.": crlf,
        "Bytes that are not UTF-8 are shown as \ufffd.": broken,
        "Long lines are cut.": cut,
    }
    page.remarks = [remark for remark, holds in remarks.items() if holds]
    return page


def number_lines(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines, first))


def find_all(text: str, wanted: str) -> list[int]:
    """Return the line number of each occurrence. LF in `wanted` matches CRLF and the other way round."""
    pattern = re.compile(f"(?={_line_ending_pattern(wanted)})")
    numbers, line, counted_to = [], 1, 0
    for match in pattern.finditer(text):
        line += text.count("\n", counted_to, match.start())
        counted_to = match.start()
        numbers.append(line)
    return numbers


def replace_text(text: str, old: str, new: str, *, every: bool) -> tuple[str, int]:
    """Replace the first or every `old`; return text and count. New lines get the file's line endings."""
    endings = text.count("\r\n")
    if "\n" in text:
        ending = "\r\n" if endings * 2 > text.count("\n") else "\n"
        new = new.replace("\r\n", "\n").replace("\n", ending)
    return re.subn(_line_ending_pattern(old), lambda _: new, text, count=0 if every else 1)


def _line_ending_pattern(wanted: str) -> str:
    """Return a pattern for the text with any line endings. An LF does not match within a CRLF."""
    parts = [re.escape(part) for part in re.split(r"\r?\n", wanted)]
    return r"\r?\n".join(parts) if parts[0] else r"(?<!\r)" + r"\r?\n".join(parts)


def _lines(reader: io.TextIOWrapper) -> Iterator[tuple[str, int]]:
    """Yield the beginning of each line, at most a chunk, and the line's whole length."""
    while head := reader.readline(_CHUNK):
        length, piece = len(head), head
        while not piece.endswith("\n") and (piece := reader.readline(_CHUNK)):
            length += len(piece.rstrip("\r\n"))
        yield head, length


def _encoding_of(head: bytes, size: int) -> tuple[bytes, str]:
    """Detect BOM and encoding. Raises NotTextError for binary data."""
    for bom, encoding in _BOMS:
        if head.startswith(bom):
            return bom, encoding
    kind = next((name for magic, name in _MAGIC if head.startswith(magic)), None)
    if b"\0" in head or (kind is not None and not _is_utf8(head)):
        raise NotTextError(
            f"{{path}} is {kind or 'a binary file'} of {human_size(size)}, not text. "
            "It is not shown; use exec with a program made for it."
        )
    return b"", "utf-8"


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _replace_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="surrogateescape").decode(errors="replace")
    return text


_DIFF_LINES = 4_000
_DISPLAY_LINES = 200
_CLOSEST_TIMEOUT_S = 0.5


def diff(before: str, after: str) -> str | None:
    """Return a unified diff without the file's name; None if computing it would take long."""
    old, new = before.splitlines(), after.splitlines()
    if len(old) + len(new) > _DIFF_LINES and old:
        return None
    lines = list(difflib.unified_diff(old, new, lineterm=""))[2:]
    if len(lines) > _DISPLAY_LINES:
        lines = [*lines[:_DISPLAY_LINES], f"... {len(lines) - _DISPLAY_LINES} more lines"]
    return "\n".join(lines)


def closest_match(path: str, text: str, old_text: str) -> str:
    """Explain why old_text was not found: what is closest to it, and where."""
    lines = text.splitlines()
    wanted = old_text.strip("\r\n").splitlines()
    closest = _closest(lines, wanted)
    if closest is None:
        return f"old_text is not in {path}, nor anything like it. Read the file and take the text from there."
    start, ratio = closest
    actual = lines[start : start + len(wanted)]
    hint = " It differs in white space." if [x.split() for x in actual] == [x.split() for x in wanted] else ""
    return (
        f"old_text is not in {path}. The closest text ({ratio:.0%} alike) begins at line {start + 1}.{hint}\n"
        f"{number_lines(actual[:40], start + 1)}\nTake old_text from there, without the line numbers."
    )


def _closest(lines: list[str], wanted: list[str]) -> tuple[int, float] | None:
    """Return start and similarity of the lines most like `wanted`. Searches for half a second at most."""
    target = "\n".join(wanted)[:2_000]
    deadline = time.monotonic() + _CLOSEST_TIMEOUT_S
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(target)
    best, best_ratio = None, 0.5
    for start in range(max(1, len(lines) - len(wanted) + 1)):
        matcher.set_seq1("\n".join(lines[start : start + len(wanted)])[:2_000])
        if matcher.real_quick_ratio() > best_ratio and matcher.quick_ratio() > best_ratio:
            ratio = matcher.ratio()
            if ratio > best_ratio:
                best, best_ratio = start, ratio
        if time.monotonic() > deadline:
            break
    return None if best is None else (best, best_ratio)
