"""What read_file runs to read a PDF or an Office document: its text, printed page by page.

Run as a script in a child process of its own, with the open file as its stdin: a document that is made to never end, or
to fill the memory, ends this process and nothing else. It has no path, and opens no other file of the user's.

Prints lines of JSON: `{"unit", "total"}`, then `{"text"}` for each page, sheet or slide as it is read; or `{"error"}`,
or `{"missing"}` where no reader is installed.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO
from zipfile import BadZipFile, ZipFile

_CPU_S = 20
_MEMORY = 1024 * 1024 * 1024
_MOST_UNPACKED = 300 * 1024 * 1024
_MOST_CHARS_OF_A_SHEET = 500_000
_MOST_COLUMNS = 60
_LONGEST_CELL = 500

_Pages = Iterator[str]


class _RefusedError(Exception):
    """The document cannot be read. The text says why."""


def _limit() -> None:
    """Where the host can, see to it that no document takes all of it."""
    try:
        import resource
    except ImportError:
        return
    for what, most in ((resource.RLIMIT_CPU, _CPU_S), (resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_FSIZE, 0)):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _pdf(file: BinaryIO) -> tuple[int, _Pages]:
    import logging

    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it tells of every odd byte
    reader = PdfReader(file)
    if reader.is_encrypted and not reader.decrypt(""):
        raise _RefusedError("it is encrypted: ask for the password, and open it with exec (qpdf --decrypt)")
    pages = reader.pages
    return len(pages), (page.extract_text() for page in pages)


def _docx(file: BinaryIO) -> tuple[int, _Pages]:
    import docx
    from docx.table import Table

    def words() -> Iterator[str]:
        for block in docx.Document(file).iter_inner_content():
            if isinstance(block, Table):
                yield from (" | ".join(cell.text.strip() for cell in row.cells) for row in block.rows)
                yield ""
            else:
                style = (block.style.name or "") if block.style is not None else ""
                level = style.removeprefix("Heading ")
                heading = "#" * int(level) + " " if style.startswith("Heading ") and level.isdigit() else ""
                yield heading + block.text

    return 1, iter(["\n".join(words())])


def _xlsx(file: BinaryIO) -> tuple[int, _Pages]:
    import warnings

    from openpyxl import load_workbook

    warnings.simplefilter("ignore")  # of parts it does not know
    book = load_workbook(file, read_only=True, data_only=True)

    def sheets() -> Iterator[str]:
        for sheet in book.worksheets:
            room, lines = _MOST_CHARS_OF_A_SHEET, [f"[{sheet.title}]"]
            for number, row in enumerate(sheet.iter_rows(values_only=True, max_col=_MOST_COLUMNS), 1):
                cells = ["" if value is None else str(value)[:_LONGEST_CELL] for value in row]
                if not any(cells):
                    continue
                line = f"{number}\t" + "\t".join(cells).rstrip("\t").replace("\n", " ")
                room -= len(line)
                if room < 0:
                    lines.append(f"(cut at row {number})")
                    break
                lines.append(line)
            yield "\n".join(lines)

    return len(book.worksheets), sheets()


def _pptx(file: BinaryIO) -> tuple[int, _Pages]:
    from pptx import Presentation

    slides = list(Presentation(file).slides)

    def words() -> Iterator[str]:
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

    return len(slides), words()


_READERS: dict[str, tuple[str, Callable[[BinaryIO], tuple[int, _Pages]]]] = {
    "pdf": ("page", _pdf),
    "docx": ("document", _docx),
    "xlsx": ("sheet", _xlsx),
    "pptx": ("slide", _pptx),
}


def _check_unpacked(file: BinaryIO) -> None:
    """A ZIP that unpacks to very much is refused before anybody unpacks it."""
    with ZipFile(file) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _MOST_UNPACKED:
            raise _RefusedError(f"it unpacks to more than {_MOST_UNPACKED >> 20} MB")
    file.seek(0)


def _tell(told: dict[str, object]) -> None:
    sys.stdout.buffer.write(json.dumps(told).encode() + b"\n")
    sys.stdout.buffer.flush()


def _read(kind: str, file: BinaryIO) -> None:
    unit, reader = _READERS[kind]
    if kind != "pdf":
        _check_unpacked(file)
    total, pages = reader(file)
    _tell({"unit": unit, "total": total})
    for page in pages:
        _tell({"text": page.strip()})


def main(kind: str) -> None:
    """Read and print. A failure is told too."""
    _limit()
    try:
        _read(kind, sys.stdin.buffer)
    except ImportError:
        _tell({"missing": True})
    except _RefusedError as error:
        _tell({"error": str(error)})
    except MemoryError:
        _tell({"error": "it takes too much memory to read"})
    except BadZipFile:
        _tell({"error": "it is damaged or not whole: get it anew"})
    except Exception as error:  # a reader of hostile bytes raises whatever it likes, in words that may be the file's
        _tell({"error": f"it is damaged or of a kind that cannot be read ({type(error).__name__})"})


if __name__ == "__main__":
    main(sys.argv[1])
