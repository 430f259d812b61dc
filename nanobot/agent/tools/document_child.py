"""The child process in which read_file reads a PDF or an Office document: prints its text page by page.

Runs as a script with the open file as its stdin: a document made to never end or to fill the memory ends this process
only. It gets no path and opens no other file of the user.

Prints lines of JSON: `{"unit", "total"}`, then `{"text"}` for each page, sheet or slide as it is read; or `{"error"}`,
or `{"missing"}` if no reader is installed.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO
from zipfile import BadZipFile, ZipFile

_CPU_S = 20
_MEMORY = 1024 * 1024 * 1024
_MAX_UNPACKED = 300 * 1024 * 1024
_MAX_SHEET_CHARS = 500_000
_MAX_COLUMNS = 60
_MAX_CELL_CHARS = 500

_Pages = Iterator[str]


class _UnreadableError(Exception):
    """The text says why the document cannot be read."""


def _limit() -> None:
    """Limit CPU time, memory and file size, if the host can."""
    try:
        import resource
    except ImportError:
        return
    for limit, value in ((resource.RLIMIT_CPU, _CPU_S), (resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_FSIZE, 0)):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _pdf(file: BinaryIO) -> tuple[int, _Pages]:
    import logging

    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it reports every odd byte
    reader = PdfReader(file)
    if reader.is_encrypted and not reader.decrypt(""):
        raise _UnreadableError("it is encrypted: ask for the password, and open it with exec (qpdf --decrypt)")
    pages = reader.pages
    return len(pages), (page.extract_text() for page in pages)


def _docx(file: BinaryIO) -> tuple[int, _Pages]:
    import docx
    from docx.table import Table

    def blocks() -> Iterator[str]:
        for block in docx.Document(file).iter_inner_content():
            if isinstance(block, Table):
                yield from (" | ".join(cell.text.strip() for cell in row.cells) for row in block.rows)
                yield ""
            else:
                style = (block.style.name or "") if block.style is not None else ""
                level = style.removeprefix("Heading ")
                heading = "#" * int(level) + " " if style.startswith("Heading ") and level.isdigit() else ""
                yield heading + block.text

    return 1, iter(["\n".join(blocks())])


def _xlsx(file: BinaryIO) -> tuple[int, _Pages]:
    import warnings

    from openpyxl import load_workbook

    warnings.simplefilter("ignore")  # about parts it does not know
    book = load_workbook(file, read_only=True, data_only=True)

    def sheets() -> Iterator[str]:
        for sheet in book.worksheets:
            remaining, lines = _MAX_SHEET_CHARS, [f"[{sheet.title}]"]
            for number, row in enumerate(sheet.iter_rows(values_only=True, max_col=_MAX_COLUMNS), 1):
                cells = ["" if value is None else str(value)[:_MAX_CELL_CHARS] for value in row]
                if not any(cells):
                    continue
                line = f"{number}\t" + "\t".join(cells).rstrip("\t").replace("\n", " ")
                remaining -= len(line)
                if remaining < 0:
                    lines.append(f"(cut at row {number})")
                    break
                lines.append(line)
            yield "\n".join(lines)

    return len(book.worksheets), sheets()


def _pptx(file: BinaryIO) -> tuple[int, _Pages]:
    from pptx import Presentation

    slides = list(Presentation(file).slides)

    def texts() -> Iterator[str]:
        for slide in slides:
            parts = []
            for shape in slide.shapes:
                if shape.has_text_frame:
                    parts.append(shape.text_frame.text)
                if getattr(shape, "has_table", False):
                    parts += [" | ".join(cell.text for cell in row.cells) for row in shape.table.rows]
            if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None and notes.text:
                parts.append(f"(notes) {notes.text}")
            yield "\n".join(part for part in parts if part.strip())

    return len(slides), texts()


_READERS: dict[str, tuple[str, Callable[[BinaryIO], tuple[int, _Pages]]]] = {
    "pdf": ("page", _pdf),
    "docx": ("document", _docx),
    "xlsx": ("sheet", _xlsx),
    "pptx": ("slide", _pptx),
}


def _check_unpacked(file: BinaryIO) -> None:
    """Refuse a ZIP that unpacks to very much, before unpacking it."""
    with ZipFile(file) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _MAX_UNPACKED:
            raise _UnreadableError(f"it unpacks to more than {_MAX_UNPACKED >> 20} MB")
    file.seek(0)


def _print_json(message: dict[str, object]) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


def main(kind: str) -> None:
    """Read and print. Failures are printed too."""
    _limit()
    try:
        unit, reader = _READERS[kind]
        if kind != "pdf":
            _check_unpacked(sys.stdin.buffer)
        total, pages = reader(sys.stdin.buffer)
        _print_json({"unit": unit, "total": total})
        for page in pages:
            _print_json({"text": page.strip()})
    except ImportError:
        _print_json({"missing": True})
    except _UnreadableError as error:
        _print_json({"error": str(error)})
    except MemoryError:
        _print_json({"error": "it takes too much memory to read"})
    except BadZipFile:
        _print_json({"error": "it is damaged or incomplete: download or copy it again"})
    except Exception as error:  # a reader of hostile bytes may raise anything, with text that may be the file's
        _print_json({"error": f"it is damaged or of a kind that cannot be read ({type(error).__name__})"})


if __name__ == "__main__":
    main(sys.argv[1])
