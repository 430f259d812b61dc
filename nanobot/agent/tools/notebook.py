"""Jupyter notebooks: their cells as text for read_file, and `notebook_edit`, which changes one of them.

The format is nbformat 4 (https://nbformat.readthedocs.io/en/latest/format_description.html). What is not changed is
kept as it is, and the file is written the way Jupyter writes it: JSON, indented by one.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.differences import diff
from nanobot.agent.tools.disk import asked_for, in_thread, new_file_mode, opener, within
from nanobot.agent.tools.reach import Reach
from nanobot.agent.tools.schema import string, takes
from nanobot.agent.tools.textfile import NotTextError
from nanobot.security.opening import Place
from nanobot.security.paths import PathPolicy
from nanobot.utils.text import counted

LARGEST_NOTEBOOK = 32 * 1024 * 1024
_OUTPUT_CHARS = 2_000
Cell = dict[str, Any]


class NotANotebookError(NotTextError):
    """This is no notebook that can be read. `{path}` in the message stands for its path."""


def notebook_text(data: bytes) -> str:
    """The cells as text, each under a mark with its number and id; outputs shortened, pictures named.

    Raises NotANotebookError.
    """
    _, cells = _parsed(data)
    return "\n\n".join(_cell_text(number, cell) for number, cell in enumerate(cells)) or "(a notebook without cells)"


@dataclass(frozen=True, slots=True)
class CellSeen:
    """A cell of a notebook as it stands."""

    id: str
    kind: str
    source: str


def cells_of(data: bytes) -> list[CellSeen]:
    """The cells in their order. Raises NotANotebookError."""
    _, cells = _parsed(data)
    return [
        CellSeen(str(cell.get("id") or ""), str(cell.get("cell_type", "code")), _joined(cell.get("source")))
        for cell in cells
    ]


class NotebookEditTool(Tool):
    """One cell of a notebook."""

    name = "notebook_edit"
    description = (
        "Change a cell of a Jupyter notebook: replace its source, insert a cell after it, delete it. read_file shows "
        "numbers and ids."
    )
    parameters = takes(
        "path",
        path=string("An .ipynb file"),
        cell=string("Number from 0, or id; none: insert first"),
        mode=string("Default replace", enum=["replace", "insert", "delete"]),
        source=string(),
        cell_type=string(enum=["code", "markdown", "raw"]),
    )
    effect = Effect.ONCE

    def __init__(self, paths: PathPolicy) -> None:
        self._paths = paths

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """A folder outside of the workspace, keys, and what is read into later turns."""
        return await asked_for(lambda: within(self._paths, ctx).wanted_to_write(arguments["path"]))

    async def execute(
        self,
        path: str,
        cell: str | None = None,
        mode: Literal["replace", "insert", "delete"] = "replace",
        source: str | None = None,
        cell_type: str | None = None,
        *,
        ctx: ToolContext | None = None,
    ) -> ToolResult:
        """Change it. Cancelling leaves the old file or the new one, whole."""
        files = opener(self._paths, ctx)

        def edit() -> ToolResult:
            with files.place(path) as place:
                return _edited(place, path, _Change(cell, mode, source, cell_type))

        return await in_thread(path, files, edit)


class _Change:
    """What is to be done to which cell."""

    def __init__(self, cell: str | None, mode: str, source: str | None, cell_type: str | None) -> None:
        self.cell = cell
        self.mode = mode
        self.source = source
        self.cell_type = cell_type

    def problem(self) -> str | None:
        """What is wrong with it by itself, for a model."""
        if self.mode != "insert" and self.cell is None:
            return f"Which cell to {self.mode}? Give its number or its id; read_file shows both."
        if self.mode != "delete" and self.source is None:
            return f"There is no source to {self.mode}. Give the whole new text of the cell."
        return None

    def made_to(self, notebook: dict[str, Any], cells: list[Cell]) -> str | None:
        """Change the cells; what is wrong, if it cannot be done."""
        at = -1 if self.cell is None else _find(cells, self.cell)
        if at is None:
            return f"There is no cell {self.cell}. There are {counted(len(cells), 'cell')}, counted from 0."
        if self.mode == "delete":
            del cells[at]
        elif self.mode == "insert":
            cells.insert(at + 1, _new_cell(notebook, self.source or "", self.cell_type or "code"))
        else:
            cells[at] = _replaced(cells[at], self.source or "", self.cell_type)
        return None


def _edited(place: Place, path: str, change: _Change) -> ToolResult:
    if (problem := change.problem()) is not None:
        return ToolResult.failed(problem)
    with place.read() as file:
        data = file.read(LARGEST_NOTEBOOK + 1)
    place.check_permission()
    notebook, cells = _parsed(data)
    before = notebook_text(data)
    old = json.dumps(cells)
    if (problem := change.made_to(notebook, cells)) is not None:
        return ToolResult.failed(problem)
    if json.dumps(cells) == old:
        return ToolResult.failed("The cell has just this source already: there is nothing to change.")
    written = (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode(errors="replace")
    left = place.replace(written, new_file_mode())
    done = {"replace": "Replaced", "insert": "Inserted", "delete": "Deleted"}[change.mode]
    which = "a cell" if change.mode == "insert" else f"cell {change.cell}"
    text = f"{done} {which} of {path}; it has {counted(len(cells), 'cell')} now."
    return ToolResult(text, display=diff(before, notebook_text(written), path), left=left)


def _parsed(data: bytes) -> tuple[dict[str, Any], list[Cell]]:
    if len(data) > LARGEST_NOTEBOOK:
        raise NotANotebookError("{path} is too large for a notebook. Use exec with jq.")
    try:
        notebook = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotANotebookError(f"{{path}} is no notebook: {str(error)[:200]}. Mend it with edit_file.") from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise NotANotebookError(
            "{path} has no list of cells: it is no notebook of format 4. Convert it with exec (jupyter nbconvert)."
        )
    return notebook, cells


def _find(cells: list[Cell], wanted: str) -> int | None:
    """The place of a cell by its id or its number."""
    for number, cell in enumerate(cells):
        if cell.get("id") == wanted:
            return number
    return int(wanted) if wanted.isascii() and wanted.isdigit() and int(wanted) < len(cells) else None


def _new_cell(notebook: dict[str, Any], source: str, kind: str) -> Cell:
    cell: Cell = {"cell_type": kind, "metadata": {}, "source": _lines(source)}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    if (notebook.get("nbformat", 4), notebook.get("nbformat_minor", 0)) >= (4, 5):
        cell = {"id": secrets.token_hex(4), **cell}
    return cell


def _replaced(cell: Cell, source: str, kind: str | None) -> Cell:
    """The cell with another source. What it put out before is no longer its output."""
    kind = kind or str(cell.get("cell_type", "code"))
    if source == _joined(cell.get("source")) and kind == cell.get("cell_type"):
        return cell
    changed = {**cell, "cell_type": kind, "source": _lines(source) if _is_list(cell) else source}
    for name in ("execution_count", "outputs"):
        changed.pop(name, None)
    return changed | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _is_list(cell: Cell) -> bool:
    return not isinstance(cell.get("source"), str)


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _joined(text: object) -> str:
    """A text that may be written as a list of lines."""
    if isinstance(text, list):
        return "".join(str(line) for line in text)
    return text if isinstance(text, str) else ""


def _cell_text(number: int, cell: Cell) -> str:
    named = f" id={cell['id']}" if cell.get("id") else ""
    parts = [f"--- cell {number} {cell.get('cell_type', 'code')}{named} ---", _joined(cell.get("source"))]
    outputs = cell.get("outputs")
    shown = [_output_text(one) for one in cast("list[object]", outputs)] if isinstance(outputs, list) else []
    if any(shown):
        parts += ["--- output ---", *filter(None, shown)]
    return "\n".join(parts)


def _output_text(output: object) -> str:
    if not isinstance(output, dict):
        return ""
    data = output.get("data")
    kinds: dict[str, Any] = data if isinstance(data, dict) else {}
    text = _joined(output.get("text")) or _joined(kinds.get("text/plain"))
    if output.get("output_type") == "error":
        text = f"{output.get('ename')}: {output.get('evalue')}"
    pictures = [f"[{kind}]" for kind in kinds if kind.startswith("image/")]
    if len(text) > _OUTPUT_CHARS:
        text = f"{text[:_OUTPUT_CHARS]}... [{len(text) - _OUTPUT_CHARS} more characters]"
    return "\n".join(filter(None, [text.rstrip("\n"), *pictures]))
