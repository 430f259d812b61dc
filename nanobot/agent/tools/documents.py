"""PDF and Office documents as text, read by a child process (`document_child`) to contain hostile ones."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nanobot.agent.tools.base import ToolResult
from nanobot.utils.installation import install_command
from nanobot.utils.processes import child_process
from nanobot.utils.text import count_noun, human_size

_CHILD = Path(__file__).with_name("document_child.py")
_MAX_FILE_BYTES = 64 * 1024 * 1024
_MAX_OUTPUT_BYTES = 8 * 1024 * 1024
"""Of the child: escaped, a character may take six bytes."""
_CHUNK = 64 * 1024
_TIMEOUT_S = 30.0
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

    def __init__(self) -> None:
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
            result = await self._read(file, kind)
            if isinstance(result, str):
                return ToolResult.failed(f"{description}, but {result}.")
            document = result
        self._cache[key] = document
        while len(self._cache) > _MAX_CACHED:
            del self._cache[next(iter(self._cache))]
        return document

    async def _read(self, file: BinaryIO, kind: str) -> Document | str:
        """Read it in a child process, as far as that is possible. Return why there is nothing, if so."""
        argv = [sys.executable, "-I", str(_CHILD), kind]
        env = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
        output, problem = bytearray(), "reading it took too much time or memory and was stopped"
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                child_process(argv, cwd=_CHILD.parent, env=env, stdin=file.fileno()) as child,
            ):
                while (chunk := await child.stdout.read(_CHUNK)) and len(output) <= _MAX_OUTPUT_BYTES:
                    output += chunk
            if len(output) > _MAX_OUTPUT_BYTES:
                problem = "it has more text than can be read at once"
        except TimeoutError:
            problem = f"reading it took longer than {_TIMEOUT_S:g} s and was stopped"
        message: dict[str, Any] = {}
        for line in output.split(b"\n")[:-1]:  # the last one is empty or cut off
            message |= json.loads(line)
            message.setdefault("pages", []).extend([message.pop("text")] if "text" in message else [])
        if "missing" in message:
            problem = f"no reader is installed here: {install_command('docs')}. Tell the owner"
        problem = str(message.get("error", problem))
        pages, unit, total = message.get("pages", []), message.get("unit", ""), message.get("total", 0)
        if not pages and (total or not unit):
            return problem
        remarks = [] if unit == "document" else [f"{count_noun(total, unit)}."]
        if not any(pages):
            remarks.append("There is no text in it: it may be scanned.")
        if len(pages) < total:
            remarks.append(f"Only the first {len(pages)} are shown: {problem}.")
        if unit != "document":
            pages = [f"--- {unit} {at} of {total} ---\n{page}" for at, page in enumerate(pages, 1)]
        return Document("\n\n".join(pages), " ".join(remarks))
