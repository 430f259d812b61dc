"""Jupyter notebooks: their cells as text for read_file, and `notebook_edit`, which changes one of them.

The format is nbformat 4 (https://nbformat.readthedocs.io/en/latest/format_description.html). Unchanged parts stay as
they are, and the file is written the way Jupyter writes it: JSON, indented by one.
"""

import json
import secrets
from typing import Any, Literal, cast

from nanobot.agent.tools.base import Effect, ToolContext, ToolResult, string, takes
from nanobot.agent.tools.disk import FileTool, new_file_mode
from nanobot.agent.tools.textfile import NotTextError, diff
from nanobot.security.files.open import Opener
from nanobot.utils.text import count_noun

LARGEST_NOTEBOOK = 32 * 1024 * 1024
_OUTPUT_CHARS = 2_000
Cell = dict[str, Any]


class NotANotebookError(NotTextError):
    """The file is not a readable notebook. `{path}` in the message stands for its path."""


def notebook_text(data: bytes) -> str:
    """Return the cells as text, each below a line with its number and id; outputs shortened, pictures named.

    Raises NotANotebookError.
    """
    _, cells = _parse(data)
    return "\n\n".join(_cell_text(number, cell) for number, cell in enumerate(cells)) or "(a notebook without cells)"


class NotebookEditTool(FileTool):
    name = "notebook_edit"
    description = (
        "Change one cell of a Jupyter notebook: replace its source, insert one after it, or delete it. read_file shows "
        "the numbers and ids of cells."
    )
    parameters = takes(
        "path",
        path=string("Path of the .ipynb file, relative to the workspace"),
        cell=string("Number of the cell (from 0) or its id; leave out to insert at the top"),
        mode=string("What to do (default replace)", enum=["replace", "insert", "delete"]),
        source=string("New source of the cell"),
        cell_type=string("Type of an inserted cell (default code)", enum=["code", "markdown", "raw"]),
    )
    effect = Effect.ONCE
    alone = True  # two edits of one file in a step must see each other

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
        """Change the cell. Cancelling leaves the old or the new file, whole."""
        if mode != "insert" and cell is None:
            return ToolResult.failed(f"Which cell to {mode}? Give its number or its id; read_file shows both.")
        if mode != "delete" and source is None:
            return ToolResult.failed(f"There is no source to {mode}. Give the whole new text of the cell.")

        def edit(files: Opener) -> ToolResult:
            with files.place(path) as place:
                with place.read() as file:
                    data = file.read(LARGEST_NOTEBOOK + 1)
                place.check_permission()
                notebook, cells = _parse(data)
                at = -1 if cell is None else _find(cells, cell)
                if at is None:
                    return ToolResult.failed(
                        f"There is no cell {cell}. There are {count_noun(len(cells), 'cell')}, counted from 0."
                    )
                before, old = notebook_text(data), json.dumps(cells)
                if mode == "delete":
                    del cells[at]
                elif mode == "insert":
                    cells.insert(at + 1, _new_cell(notebook, source or "", cell_type or "code"))
                else:
                    cells[at] = _with_source(cells[at], source or "", cell_type)
                if json.dumps(cells) == old:
                    return ToolResult.failed("The cell has exactly this source already: there is nothing to change.")
                data = (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode(errors="replace")
                written = place.replace(data, new_file_mode())
                verb = {"replace": "Replaced", "insert": "Inserted", "delete": "Deleted"}[mode]
                target = "a cell" if mode == "insert" else f"cell {cell}"
                text = f"{verb} {target} of {path}; it has {count_noun(len(cells), 'cell')} now."
                return ToolResult(text, display=diff(before, notebook_text(data)), written=written)

        return await self.in_thread(path, ctx, edit)


def _parse(data: bytes) -> tuple[dict[str, Any], list[Cell]]:
    if len(data) > LARGEST_NOTEBOOK:
        raise NotANotebookError("{path} is too large for a notebook. Use exec with jq.")
    try:
        notebook = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotANotebookError(f"{{path}} is no valid notebook: {str(error)[:200]}. Fix it with edit_file.") from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise NotANotebookError(
            "{path} has no list of cells: it is not a notebook of format 4. Convert it with exec (jupyter nbconvert)."
        )
    return notebook, cells


def _find(cells: list[Cell], wanted: str) -> int | None:
    """Return the index of a cell by its id or its number."""
    for number, cell in enumerate(cells):
        if cell.get("id") == wanted:
            return number
    return int(wanted) if wanted.isascii() and wanted.isdigit() and int(wanted) < len(cells) else None


def _new_cell(notebook: dict[str, Any], source: str, kind: str) -> Cell:
    cell: Cell = {"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    if (notebook.get("nbformat", 4), notebook.get("nbformat_minor", 0)) >= (4, 5):
        cell = {"id": secrets.token_hex(4), **cell}
    return cell


def _with_source(cell: Cell, source: str, kind: str | None) -> Cell:
    """Return the cell with another source, without outputs of the old one."""
    kind = kind or str(cell.get("cell_type", "code"))
    if source == _join_lines(cell.get("source")) and kind == cell.get("cell_type"):
        return cell
    changed = {
        **cell,
        "cell_type": kind,
        "source": source if isinstance(cell.get("source"), str) else source.splitlines(keepends=True),
    }
    for name in ("execution_count", "outputs"):
        changed.pop(name, None)
    return changed | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _join_lines(text: object) -> str:
    """Join a text that may be stored as a list of lines."""
    if isinstance(text, list):
        return "".join(str(line) for line in text)
    return text if isinstance(text, str) else ""


def _cell_text(number: int, cell: Cell) -> str:
    cell_id = f" id={cell['id']}" if cell.get("id") else ""
    parts = [f"--- cell {number} {cell.get('cell_type', 'code')}{cell_id} ---", _join_lines(cell.get("source"))]
    outputs = cell.get("outputs")
    texts = [_output_text(output) for output in cast("list[object]", outputs)] if isinstance(outputs, list) else []
    if any(texts):
        parts += ["--- output ---", *filter(None, texts)]
    return "\n".join(parts)


def _output_text(output: object) -> str:
    if not isinstance(output, dict):
        return ""
    data = output.get("data")
    kinds: dict[str, Any] = data if isinstance(data, dict) else {}
    text = _join_lines(output.get("text")) or _join_lines(kinds.get("text/plain"))
    if output.get("output_type") == "error":
        text = f"{output.get('ename')}: {output.get('evalue')}"
    pictures = [f"[{kind}]" for kind in kinds if kind.startswith("image/")]
    if len(text) > _OUTPUT_CHARS:
        text = f"{text[:_OUTPUT_CHARS]}... [{len(text) - _OUTPUT_CHARS} more characters]"
    return "\n".join(filter(None, [text.rstrip("\n"), *pictures]))
