"""The file tools: read_file, write_file, edit_file, list_dir. `textfile` converts between bytes and lines."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

from nanobot.agent.tools.base import Effect, ToolContext, ToolResult, boolean, integer, string, takes
from nanobot.agent.tools.disk import (
    FILE_ERRORS,
    SKIPPED_FOLDERS,
    FileTool,
    file_error_result,
    hold_file,
    new_file_mode,
    opener,
)
from nanobot.agent.tools.documents import Documents, document_kind
from nanobot.agent.tools.images import show_image
from nanobot.agent.tools.notebook import LARGEST_NOTEBOOK, notebook_text
from nanobot.agent.tools.textfile import (
    NotTextError,
    TextFile,
    TextPage,
    closest_match,
    diff,
    find_all,
    number_lines,
    page_lines,
    read_page,
    replace_text,
)
from nanobot.messages.types import Provenance
from nanobot.security.files.open import Entry, FileLocation, Opener, OpenFolder
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.utils.images import image_kind
from nanobot.utils.text import count_noun, human_size

if TYPE_CHECKING:
    from nanobot.security.provenance import ProvenanceStore

_PAGE_LINES = 2_000
_EDIT_CAP = 16 * 1024 * 1024


class ReadFileTool(FileTool):
    name = "read_file"
    description = (
        "Read a file. Text comes as `number<TAB>line`, a long file in pages (continue with offset); PDF, Word, Excel, "
        "PowerPoint and notebooks as text; images as images."
    )
    parameters = takes(
        "path",
        path=string("Path of the file, relative to the workspace"),
        offset=integer("First line to read, from 1"),
        limit=integer("Number of lines (default 2000)"),
    )
    effect = Effect.READ
    provenance = Provenance.FILE

    def __init__(self, paths: PathPolicy, marks: "ProvenanceStore | None" = None) -> None:
        super().__init__(paths, marks)
        self._documents = Documents()

    async def execute(
        self, path: str, offset: int = 1, limit: int | None = None, *, ctx: ToolContext | None = None
    ) -> ToolResult:
        """Read the file. Memory use is bounded by the page. Cancelling leaves no child process."""
        files = opener(self._paths, ctx)
        offset, count = max(1, offset), _PAGE_LINES if limit is None else max(1, limit)
        try:
            async with hold_file(lambda: files.open(path)) as (real, file):
                kind = await asyncio.to_thread(document_kind, file)
                if kind is None:
                    result = await self.in_thread(path, ctx, lambda files: _read_file(files, path, file, offset, count))
                else:
                    result = await self._document(path, file, kind, offset, count)
        except FILE_ERRORS as error:
            return await asyncio.to_thread(file_error_result, error, path, files)
        if result.error:
            return replace(result, provenance=Provenance.TOOL)  # the text is ours: why it was not read
        own = Provenance.FILE if kind is None else Provenance.PERSON
        return replace(result, provenance=await asyncio.to_thread(self.provenance_of, real, own))

    async def _document(self, path: str, file: BinaryIO, kind: str, offset: int, count: int) -> ToolResult:
        document = await self._documents.text(path, file, kind)
        if isinstance(document, ToolResult):
            return document
        page = page_lines(document.text.split("\n"), offset, count)
        page.remarks.append(document.remark)
        return _format_page(path, page, offset)


def _read_file(files: Opener, path: str, file: BinaryIO, offset: int, count: int) -> ToolResult:
    """Read a picture, a notebook, or text. Raises NotTextError for anything else."""
    head = file.read(64)
    file.seek(0)
    if image_kind(head) is not None:
        return show_image(files, path, file)
    if path.lower().endswith(".ipynb"):
        text = notebook_text(file.read(LARGEST_NOTEBOOK + 1))
        page = page_lines(text.split("\n"), offset, count)
    else:
        page = read_page(file, offset, count)
        if page.total == 0 and offset == 1:
            return ToolResult(f"({path} is an empty file.)")
    return _format_page(path, page, offset)


def _format_page(path: str, page: TextPage, offset: int) -> ToolResult:
    if not page.lines:
        return ToolResult.failed(
            f"{path} has only {count_noun(page.total or 0, 'line')}; offset {offset} is past its end."
        )
    last = offset + len(page.lines) - 1
    notes = [remark for remark in page.remarks if remark]
    if page.more:
        of = f" of {page.total}" if page.total else f" of a file of {human_size(page.file_size)}"
        notes.append(f"Lines {offset}-{last}{of}. Read on with offset={last + 1}.")
    elif offset > 1:
        notes.append(f"Lines {offset}-{last}, the end of the file.")
    text = number_lines(page.lines, offset)
    return ToolResult(f"{text}\n\n({' '.join(notes)})" if notes else text)


class WriteFileTool(FileTool):
    name = "write_file"
    description = (
        "Write a whole file, replacing an existing one; missing folders are created. To change a part, use edit_file."
    )
    parameters = takes(
        "path",
        "content",
        path=string("Path of the file, relative to the workspace"),
        content=string("The whole new content"),
    )
    effect = Effect.REPEATABLE
    alone = True  # two edits of one file in a step must see each other

    async def execute(self, path: str, content: str, *, ctx: ToolContext | None = None) -> ToolResult:
        """Write the file. Cancelling leaves the old or the new file, whole."""
        data = content.encode(errors="replace")  # the model may have written half a surrogate pair

        def write(files: Opener) -> ToolResult:
            with files.place(path, make=True) as place:
                before = _text_before(place)
                place.check_permission()
                written = place.replace(data, new_file_mode())
            action = f"Created {path}" if before is None else f"Replaced {path}"
            size = f"{count_noun(len(content.splitlines()), 'line')}, {count_noun(len(data), 'byte')}"
            display = None if before == _UNREADABLE else diff(before or "", content)
            return ToolResult(f"{action} ({size}).", display=display, written=written)

        return await self.in_thread(path, ctx, write)


class EditFileTool(FileTool):
    name = "edit_file"
    description = (
        "Replace a piece of text in a file. old_text must occur exactly once, indentation included: add surrounding "
        "lines to make it unique, or set replace_all."
    )
    parameters = takes(
        "path",
        "old_text",
        "new_text",
        path=string("Path of the file, relative to the workspace"),
        old_text=string("The text to replace, exactly as in the file, without line numbers"),
        new_text=string("The new text; empty deletes"),
        replace_all=boolean("Replace every occurrence (default false)"),
    )
    effect = Effect.ONCE
    alone = True  # two edits of one file in a step must see each other

    async def execute(
        self, path: str, old_text: str, new_text: str, replace_all: bool = False, *, ctx: ToolContext | None = None
    ) -> ToolResult:
        """Change the file. Cancelling leaves the old or the new file, whole."""

        def edit(files: Opener) -> ToolResult:
            with files.place(path) as place:
                result = _edit(place, path, old_text, new_text, every=replace_all)
                return replace(result, provenance=self.provenance_of(place.real, Provenance.TOOL))

        return await self.in_thread(path, ctx, edit)


class ListDirTool(FileTool):
    name = "list_dir"
    description = (
        "List a folder: folders end in `/`, files show their size. Skips .git, node_modules and similar folders."
    )
    parameters = takes(
        "path",
        path=string("Path of the folder, relative to the workspace; `.` is the workspace"),
        recursive=boolean("List subfolders too (default false)"),
        max_entries=integer("Most entries (default 200)"),
    )
    effect = Effect.READ
    provenance = Provenance.FILE

    async def execute(
        self, path: str, recursive: bool = False, max_entries: int = 200, *, ctx: ToolContext | None = None
    ) -> ToolResult:
        """List the folder. Shows where a link leads, and never follows it."""
        return await self.in_thread(path, ctx, lambda files: self._list(files, path, recursive, max(1, max_entries)))

    def _list(self, files: Opener, path: str, recursive: bool, max_entries: int) -> ToolResult:
        real = files.policy.resolve_listable(path, files.granted)
        if real.exists() and not real.is_dir():
            return ToolResult.failed(f"{path} is a file, not a folder. Use read_file.")
        lines: list[str] = []
        with files.folder(path) as folder:
            for line in _list_entries(folder, "", recursive=recursive):
                if len(lines) == max_entries:
                    shown = count_noun(max_entries, "entry", "entries")
                    lines.append(f"(More than {shown}: raise max_entries, or list a folder below.)")
                    break
                lines.append(line)
        return ToolResult("\n".join(lines) or f"({path} is an empty folder.)", provenance=self.provenance_of(real))


def _edit(place: FileLocation, path: str, old_text: str, new_text: str, *, every: bool) -> ToolResult:
    if not old_text:
        return ToolResult.failed("old_text is empty. Give the text to replace, or use write_file for a whole file.")
    if old_text == new_text:
        return ToolResult.failed("old_text and new_text are the same: there is nothing to change.")
    with place.read() as file:
        size = os.fstat(file.fileno()).st_size
        if size > _EDIT_CAP:
            return ToolResult.failed(f"{path} has {human_size(size)}, too much to edit as text. Use exec (sed).")
        before = TextFile.parse(file.read(_EDIT_CAP + 1))
    place.check_permission()
    line_numbers = find_all(before.text, old_text)
    if not line_numbers:
        return ToolResult.failed(closest_match(path, before.text, old_text))
    if len(line_numbers) > 1 and not every:
        lines = ", ".join(str(line) for line in line_numbers[:10]) + (", ..." if len(line_numbers) > 10 else "")
        return ToolResult.failed(
            f"old_text is in {path} {len(line_numbers)} times (lines {lines}). "
            "Include more of the text around the one you mean, or set replace_all."
        )
    after, count = replace_text(before.text, old_text, new_text, every=every)
    if after == before.text:
        return ToolResult.failed("new_text differs from old_text only in line endings, and those are not changed.")
    written = place.replace(before.with_text(after), new_file_mode())
    at = f"at line {line_numbers[0]}" if count == 1 else f"in {count} places"
    return ToolResult(f"Edited {path} {at}.", display=diff(before.text, after), written=written)


_UNREADABLE = "\0"
"""Stands for the text of a file that is binary or too long to compare."""


def _text_before(place: FileLocation) -> str | None:
    """Return the file's present text, None if there is no file. Raises OSError if there can be none."""
    try:
        with place.read() as file:
            data = file.read(1024 * 1024)
            return _UNREADABLE if len(data) == 1024 * 1024 else TextFile.parse(data).text
    except FileNotFoundError:
        return None
    except (NotTextError, PermissionError):
        return _UNREADABLE  # may be writable all the same; writing reports it if not


def _list_entries(folder: OpenFolder, prefix: str, *, recursive: bool) -> Iterator[str]:
    """Yield a line for each entry of a folder, and of those below if `recursive`."""
    try:
        entries = sorted(folder.entries(prefix, in_full=True), key=lambda entry: (entry.name.casefold(), entry.name))
    except (PermissionError, PathDeniedError):
        if not prefix:
            raise
        yield f"{prefix}(no permission to look inside)"
        return
    for entry in entries:
        enters = recursive and entry.is_dir and entry.name not in SKIPPED_FOLDERS
        yield f"{prefix}{_format_entry(entry)}" + (
            "  (not entered)" if recursive and entry.is_dir and not enters else ""
        )
        if enters:
            yield from _list_entries(folder, f"{prefix}{entry.name}/", recursive=True)


def _format_entry(entry: Entry) -> str:
    name = entry.name.encode(errors="replace").decode()  # a name that is not UTF-8 would break the request
    if entry.link_target is not None:
        return f"{name} -> {entry.link_target.encode(errors='replace').decode()}"
    if entry.is_dir:
        return f"{name}/"
    if entry.is_file:
        return name if entry.size is None else f"{name}  {human_size(entry.size)}"
    return f"{name}  (device, pipe or socket)"
