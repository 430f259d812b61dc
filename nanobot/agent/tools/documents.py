"""PDF and Office documents as text, read by a child process (`document_child`) to contain hostile ones."""

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
from nanobot.utils.text import count_noun, human_size

_CHILD = Path(__file__).with_name("document_child.py")
_MAX_FILE_BYTES = 64 * 1024 * 1024
_MAX_TEXT = 4 * 1024 * 1024
_CHUNK = 64 * 1024
_MAX_CACHED = 4
_MARKER_FILES = {"word/document.xml": "docx", "xl/workbook.xml": "xlsx", "ppt/presentation.xml": "pptx"}
_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
KINDS = {
    "pdf": "a PDF document",
    "docx": "a Word document",
    "xlsx": "an Excel workbook",
    "pptx": "a PowerPoint presentation",
    "old": "an Office document",
}


def document_kind(file: BinaryIO) -> str | None:
    """Detect a document's kind by its content; None for anything else. Leaves the file at its beginning."""
    head = file.read(1024)
    file.seek(0)
    if head.startswith(_OLD_OFFICE):
        return "old"
    if head.lstrip().startswith(b"%PDF-"):
        return "pdf"
    if not head.startswith(b"PK\x03\x04"):
        return None
    from zipfile import BadZipFile, ZipFile  # 8 ms, only if a ZIP is read

    try:
        with ZipFile(file) as archive:
            names = set(archive.namelist())
    except (BadZipFile, OSError, ValueError, NotImplementedError):
        names = set()
    file.seek(0)
    return next((kind for part, kind in _MARKER_FILES.items() if part in names), None)


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a document, with a line before each page, and a remark for the reader."""

    text: str
    remark: str


class Documents:
    """Reads documents, and caches the last few: reading on asks for the same one again."""

    def __init__(self, timeout_s: float = 30.0) -> None:
        self._timeout_s = timeout_s
        self._cache: dict[tuple[int, int, int, int], Document] = {}

    async def text(self, path: str, file: BinaryIO, kind: str) -> Document | ToolResult:
        """Return all text, or for a model why there is none. Cancelling leaves no child process."""
        stat = os.fstat(file.fileno())
        key = (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)
        document = self._cache.pop(key, None)
        if document is None:
            description = f"{path} is {KINDS[kind]} of {human_size(stat.st_size)}"
            if kind == "old":
                return ToolResult.failed(
                    f"{description}, in the old binary format or encrypted. Convert it with exec "
                    "(libreoffice --headless --convert-to), or ask for it in another format."
                )
            if stat.st_size > _MAX_FILE_BYTES:
                return ToolResult.failed(f"{description}, too large to read. Split it with exec first.")
            output = _ChildOutput()
            problem = await self._run(file, kind, output)
            if problem and not output.pages:
                return ToolResult.failed(f"{description}, but {problem}.")
            document = output.document(problem)
        self._cache[key] = document
        while len(self._cache) > _MAX_CACHED:
            del self._cache[next(iter(self._cache))]
        return document

    async def _run(self, file: BinaryIO, kind: str, output: "_ChildOutput") -> str | None:
        """Read the document in a child process. Return why it was not read to its end, if so."""
        argv = [sys.executable, "-I", str(_CHILD), kind]
        env = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
        try:
            async with asyncio.timeout(self._timeout_s):
                async with child_process(argv, cwd=_CHILD.parent, env=env, stdin=file.fileno()) as child:
                    rest = b""
                    while chunk := await child.stdout.read(_CHUNK):
                        *lines, rest = (rest + chunk).split(b"\n")
                        for line in lines:
                            if (problem := output.add_line(line)) is not None:
                                return problem
                        if len(rest) > _MAX_TEXT:
                            return "it has more text than can be read at once"
        except TimeoutError:
            return f"reading it took longer than {self._timeout_s:g} s and was stopped"
        return None if output.is_complete else "reading it took too much time or memory and was stopped"


class _ChildOutput:
    """What the child process has printed so far."""

    def __init__(self) -> None:
        self.pages: list[str] = []
        self._unit = ""
        self._total = 0
        self._size = 0

    @property
    def is_complete(self) -> bool:
        return bool(self._unit) and len(self.pages) >= self._total

    def add_line(self, line: bytes) -> str | None:
        """Process one line of the child. Return why no more is wanted, if so."""
        message = json.loads(line)
        if "missing" in message:
            return f"no reader is installed here: {install_command('docs')}. Tell the owner"
        if "error" in message:
            return str(message["error"])
        if "unit" in message:
            self._unit, self._total = message["unit"], message["total"]
            return None
        self.pages.append(message["text"])
        self._size += len(message["text"])
        return "it has more text than can be read at once" if self._size > _MAX_TEXT and not self.is_complete else None

    def document(self, problem: str | None) -> Document:
        """Return all pages that came, with a line before each."""
        if self._unit == "document":
            text = "\n".join(self.pages)
        else:
            pages = (f"--- {self._unit} {at} of {self._total} ---\n{page}" for at, page in enumerate(self.pages, 1))
            text = "\n\n".join(pages)
        remarks = [] if self._unit == "document" else [f"{count_noun(self._total, self._unit)}."]
        if not any(self.pages):
            remarks.append("There is no text in it: it may be scanned.")
        if problem:
            remarks.append(f"Only the first {len(self.pages)} are shown: {problem}.")
        return Document(text, " ".join(remarks))
