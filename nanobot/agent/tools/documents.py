"""PDF and Office documents as text, read by a child process (`document_child`) that a hostile one may kill."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nanobot.agent.tools.base import ToolResult
from nanobot.utils.extras import install_command
from nanobot.utils.processes import child_process
from nanobot.utils.text import counted, human_size

_CHILD = Path(__file__).with_name("document_child.py")
_LARGEST = 64 * 1024 * 1024
_MOST_TEXT = 4 * 1024 * 1024
_PIECE = 64 * 1024
_REMEMBERED = 4
_PARTS = {"word/document.xml": "docx", "xl/workbook.xml": "xlsx", "ppt/presentation.xml": "pptx"}
_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
KINDS = {
    "pdf": "a PDF document",
    "docx": "a Word document",
    "xlsx": "an Excel workbook",
    "pptx": "a PowerPoint presentation",
    "old": "an Office document",
}


def document_kind(file: BinaryIO) -> str | None:
    """What kind of document an open file is, by what is in it; None for anything else. Leaves it at its beginning."""
    head = file.read(1024)
    file.seek(0)
    if head.startswith(_OLD_OFFICE):
        return "old"
    if head.lstrip().startswith(b"%PDF-"):
        return "pdf"
    if not head.startswith(b"PK\x03\x04"):
        return None
    from zipfile import BadZipFile, ZipFile  # 8 ms that only who reads one waits for

    try:
        with ZipFile(file) as archive:
            names = set(archive.namelist())
    except (BadZipFile, OSError, ValueError, NotImplementedError):
        names = set()
    file.seek(0)
    return next((kind for part, kind in _PARTS.items() if part in names), None)


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a document, marked page by page, and what a reader should know of it."""

    text: str
    remark: str


class Documents:
    """Reads documents, and remembers the last few: who reads on asks for the same one again."""

    def __init__(self, time_s: float = 30.0) -> None:
        self._time_s = time_s
        self._read: dict[tuple[int, int, int, int], Document] = {}

    async def text(self, path: str, file: BinaryIO, kind: str) -> Document | ToolResult:
        """All of its text; or why there is none, for a model. Cancelling leaves no child."""
        found = os.fstat(file.fileno())
        key = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
        document = self._read.pop(key, None)
        if document is None:
            what = f"{path} is {KINDS[kind]} of {human_size(found.st_size)}"
            if kind == "old":
                return ToolResult.failed(
                    f"{what}, in the old binary format or encrypted. Convert it with exec "
                    "(libreoffice --headless --convert-to), or ask for it in another format."
                )
            if found.st_size > _LARGEST:
                return ToolResult.failed(f"{what}, too large to read. Take it apart with exec first.")
            reading = _Reading()
            problem = await self._run(file, kind, reading)
            if problem and not reading.pages:
                return ToolResult.failed(f"{what}, but {problem}.")
            document = reading.document(problem)
        self._read[key] = document
        while len(self._read) > _REMEMBERED:
            del self._read[next(iter(self._read))]
        return document

    async def _run(self, file: BinaryIO, kind: str, reading: "_Reading") -> str | None:
        """Have it read. Why not all of it was, if so."""
        argv = [sys.executable, "-I", str(_CHILD), kind]
        env = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
        try:
            async with asyncio.timeout(self._time_s):
                async with child_process(argv, cwd=_CHILD.parent, env=env, stdin=file.fileno()) as child:
                    held = b""
                    while piece := await child.stdout.read(_PIECE):
                        *lines, held = (held + piece).split(b"\n")
                        for line in lines:
                            if (problem := reading.take(line)) is not None:
                                return problem
                        if len(held) > _MOST_TEXT:
                            return "it has more text than can be read at once"
        except TimeoutError:
            return f"reading it took longer than {self._time_s:g} s and was stopped"
        return None if reading.whole else "reading it took too much time or memory and was stopped"


class _Reading:
    """What the child has told so far."""

    def __init__(self) -> None:
        self.pages: list[str] = []
        self._unit = ""
        self._total = 0
        self._size = 0

    @property
    def whole(self) -> bool:
        """Whether all pages came."""
        return bool(self._unit) and len(self.pages) >= self._total

    def take(self, line: bytes) -> str | None:
        """One line of the child. Why no more is wanted, if so."""
        told = json.loads(line)
        if "missing" in told:
            return f"no reader is installed here: {install_command('docs')}. Tell the owner"
        if "error" in told:
            return str(told["error"])
        if "unit" in told:
            self._unit, self._total = told["unit"], told["total"]
            return None
        self.pages.append(told["text"])
        self._size += len(told["text"])
        return "it has more text than can be read at once" if self._size > _MOST_TEXT and not self.whole else None

    def document(self, problem: str | None) -> Document:
        """All that came, with a mark before each page."""
        if self._unit == "document":
            text = "\n".join(self.pages)
        else:
            marked = (f"--- {self._unit} {at} of {self._total} ---\n{page}" for at, page in enumerate(self.pages, 1))
            text = "\n\n".join(marked)
        remarks = [] if self._unit == "document" else [f"{counted(self._total, self._unit)}."]
        if not any(self.pages):
            remarks.append("There is no text in it: it may be scanned.")
        if problem:
            remarks.append(f"Only the first {len(self.pages)} are shown: {problem}.")
        return Document(text, " ".join(remarks))
