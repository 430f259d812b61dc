"""The file tools: read_file, write_file, edit_file, list_dir.

Each judges its path by the policy, does its work in a thread, and says in a sentence what went wrong. The bytes of a
file are `textfile`'s business: how they become lines, and how lines become the same kind of bytes again.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.differences import diff, miss
from nanobot.agent.tools.disk import NOISE, REFUSALS, asked_for, held, in_thread, new_file_mode, opener, refused, within
from nanobot.agent.tools.documents import Documents, document_kind
from nanobot.agent.tools.images import shown_picture
from nanobot.agent.tools.notebook import LARGEST_NOTEBOOK, notebook_text
from nanobot.agent.tools.origins import WordsOf, nothing_known, trust_in
from nanobot.agent.tools.reach import Reach
from nanobot.agent.tools.schema import boolean, integer, string, takes
from nanobot.agent.tools.textfile import (
    NotTextError,
    Page,
    TextFile,
    find_all,
    numbered,
    page_of,
    read_page,
    replaced,
)
from nanobot.messages.types import Provenance
from nanobot.security.opening import Entry, Opener, OpenFolder, Place
from nanobot.security.paths import PathDeniedError, PathPolicy
from nanobot.utils.pictures import picture_kind
from nanobot.utils.text import counted, human_size

_PAGE_LINES, _PAGE_CHARS = 2_000, 15_000
_EDIT_CAP = 16 * 1024 * 1024


class ReadFileTool(Tool):
    """Lines of a text file, numbered; a picture; the text of a document."""

    name = "read_file"
    description = (
        "Read a file: text as `number<TAB>line`, a long one in pages (read on with offset); PDF, Word, Excel, "
        "PowerPoint and notebooks as text; pictures as they are."
    )
    parameters = takes(
        "path",
        path=string("Relative to the workspace"),
        offset=integer("First line, from 1"),
        limit=integer("Lines (default 2000)"),
    )
    effect = Effect.READ
    provenance = Provenance.FILE

    def __init__(self, paths: PathPolicy, words_of: WordsOf = nothing_known) -> None:
        self._paths = paths
        self._words_of = words_of
        self._documents = Documents()

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """Our own state, and where keys are kept."""
        return await asked_for(lambda: within(self._paths, ctx).wanted_to_read(arguments["path"]))

    async def execute(
        self, path: str, offset: int = 1, limit: int | None = None, *, ctx: ToolContext | None = None
    ) -> ToolResult:
        """Show it. A file of any size costs the memory of a page. Cancelling leaves no child."""
        files = opener(self._paths, ctx)
        offset, count = max(1, offset), _PAGE_LINES if limit is None else max(1, limit)
        try:
            async with held(lambda: files.open(path)) as (real, file):
                kind = await asyncio.to_thread(document_kind, file)
                if kind is None:
                    result = await in_thread(path, files, lambda: _shown_file(files, path, file, offset, count))
                else:
                    result = await self._document(path, file, kind, offset, count)
        except REFUSALS as error:
            return await asyncio.to_thread(refused, error, path, files)
        if result.error:
            return replace(result, provenance=Provenance.TOOL)  # why it was not read, in words of ours
        own = Provenance.FILE if kind is None else Provenance.PERSON
        return replace(result, provenance=await asyncio.to_thread(trust_in, real, self._words_of, own))

    async def _document(self, path: str, file: BinaryIO, kind: str, offset: int, count: int) -> ToolResult:
        read = await self._documents.text(path, file, kind)
        if isinstance(read, ToolResult):
            return read
        page = page_of(read.text.split("\n"), offset, count, _PAGE_CHARS)
        page.remarks.append(read.remark)
        return _shown_page(path, page, offset)


def _shown_file(files: Opener, path: str, file: BinaryIO, offset: int, count: int) -> ToolResult:
    """A picture, a notebook, or text. Raises NotTextError for anything else."""
    head = file.read(64)
    file.seek(0)
    if picture_kind(head) is not None:
        return shown_picture(files, path, file)
    if path.lower().endswith(".ipynb"):
        text = notebook_text(file.read(LARGEST_NOTEBOOK + 1))
        page = page_of(text.split("\n"), offset, count, _PAGE_CHARS)
    else:
        page = read_page(file, offset, count, _PAGE_CHARS)
        if page.size_seen == 0 and offset == 1:
            return ToolResult(f"({path} is an empty file.)")
    return _shown_page(path, page, offset)


def _shown_page(path: str, page: Page, offset: int) -> ToolResult:
    if not page.lines:
        return ToolResult.failed(
            f"{path} has only {counted(page.total or 0, 'line')}; offset {offset} is past its end."
        )
    last = offset + len(page.lines) - 1
    notes = [remark for remark in page.remarks if remark]
    if page.more:
        of = f" of {page.total}" if page.total else f" of a file of {human_size(page.file_size)}"
        notes.append(f"Lines {offset}-{last}{of}. Read on with offset={last + 1}.")
    elif offset > 1:
        notes.append(f"Lines {offset}-{last}, the end of the file.")
    text = numbered(page.lines, offset)
    return ToolResult(f"{text}\n\n({' '.join(notes)})" if notes else text)


class WriteFileTool(Tool):
    """A whole file, written in one step."""

    name = "write_file"
    description = "Write a whole file, in place of one that exists; folders are made. To change a part use edit_file."
    parameters = takes(
        "path",
        "content",
        path=string(),
        content=string(),
    )
    effect = Effect.REPEATABLE

    def __init__(self, paths: PathPolicy) -> None:
        self._paths = paths

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """A folder outside of the workspace, keys, and what is read into later turns."""
        return await asked_for(lambda: within(self._paths, ctx).wanted_to_write(arguments["path"]))

    async def execute(self, path: str, content: str, *, ctx: ToolContext | None = None) -> ToolResult:
        """Write it. Cancelling leaves the old file or the new one, whole."""
        files = opener(self._paths, ctx)
        return await in_thread(path, files, lambda: self._write(files, path, content))

    def _write(self, files: Opener, path: str, content: str) -> ToolResult:
        data = content.encode(errors="replace")  # half a character of a model is no reason to write nothing
        with files.place(path, make=True) as place:
            before = _text_before(place)
            place.check_permission()
            left = place.replace(data, new_file_mode())
        size = f"{counted(len(content.splitlines()), 'line')}, {counted(len(data), 'byte')}"
        done = f"Created {path}" if before is None else f"Replaced {path}"
        display = None if before == _UNREADABLE else diff(before or "", content, path)
        return ToolResult(f"{done} ({size}).", display=display, left=left)


class EditFileTool(Tool):
    """One place of a file changed, the rest left byte for byte."""

    name = "edit_file"
    description = (
        "Replace old_text, which must be in the file exactly once, indentation included: add lines around it to make "
        "it unique, or set replace_all."
    )
    parameters = takes(
        "path",
        "old_text",
        "new_text",
        path=string(),
        old_text=string("As in the file, without line numbers"),
        new_text=string("In its place; empty deletes"),
        replace_all=boolean("Wherever it stands"),
    )
    effect = Effect.ONCE

    def __init__(self, paths: PathPolicy, words_of: WordsOf = nothing_known) -> None:
        self._paths = paths
        self._words_of = words_of

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """A folder outside of the workspace, keys, and what is read into later turns."""
        return await asked_for(lambda: within(self._paths, ctx).wanted_to_write(arguments["path"]))

    async def execute(
        self, path: str, old_text: str, new_text: str, replace_all: bool = False, *, ctx: ToolContext | None = None
    ) -> ToolResult:
        """Change it. Cancelling leaves the old file or the new one, whole."""
        files = opener(self._paths, ctx)

        def edit() -> ToolResult:
            with files.place(path) as place:
                result = _edited(place, path, old_text, new_text, every=replace_all)
                return replace(result, provenance=trust_in(place.real, self._words_of, Provenance.TOOL))

        return await in_thread(path, files, edit)


class ListDirTool(Tool):
    """What is in a folder."""

    name = "list_dir"
    description = (
        "List a folder: folders end in `/`, files show their size. .git, node_modules and the like are not entered."
    )
    parameters = takes(
        "path",
        path=string("`.` is the workspace"),
        recursive=boolean(),
        max_entries=integer("Default 200"),
    )
    effect = Effect.READ
    provenance = Provenance.FILE

    def __init__(self, paths: PathPolicy, words_of: WordsOf = nothing_known) -> None:
        self._paths = paths
        self._words_of = words_of

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """Our own state, and where keys are kept."""
        return await asked_for(lambda: within(self._paths, ctx).wanted_to_read(arguments["path"]))

    async def execute(
        self, path: str, recursive: bool = False, max_entries: int = 200, *, ctx: ToolContext | None = None
    ) -> ToolResult:
        """List it. A link is shown with where it leads and never followed."""
        files = opener(self._paths, ctx)
        return await in_thread(path, files, lambda: self._list(files, path, recursive, max(1, max_entries)))

    def _list(self, files: Opener, path: str, recursive: bool, max_entries: int) -> ToolResult:
        real = files.policy.listable(path, files.granted)
        if real.exists() and not real.is_dir():
            return ToolResult.failed(f"{path} is a file, not a folder. Use read_file.")
        lines: list[str] = []
        with files.folder(path) as folder:
            for line in _lines_of(folder, "", recursive=recursive):
                if len(lines) == max_entries:
                    shown = counted(max_entries, "entry", "entries")
                    lines.append(f"(More than {shown}: raise max_entries, or list a folder below.)")
                    break
                lines.append(line)
        return ToolResult(
            "\n".join(lines) or f"({path} is an empty folder.)", provenance=trust_in(real, self._words_of)
        )


def _edited(place: Place, path: str, old_text: str, new_text: str, *, every: bool) -> ToolResult:
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
    places = find_all(before.text, old_text)
    if not places:
        return ToolResult.failed(miss(path, before.text, old_text))
    if len(places) > 1 and not every:
        lines = ", ".join(str(line) for line in places[:10]) + (", ..." if len(places) > 10 else "")
        return ToolResult.failed(
            f"old_text is in {path} {len(places)} times (lines {lines}). "
            "Take in more of the text around the one you mean, or set replace_all."
        )
    after, count = replaced(before.text, old_text, new_text, every=every)
    if after == before.text:
        return ToolResult.failed("new_text differs from old_text only in line endings, and those are kept.")
    left = place.replace(before.with_text(after), new_file_mode())
    at = f"at line {places[0]}" if count == 1 else f"in {count} places"
    return ToolResult(f"Edited {path} {at}.", display=diff(before.text, after, path), left=left)


_UNREADABLE = "\0"
"""Stands for the text of a file that is not text, or too long to compare."""


def _text_before(place: Place) -> str | None:
    """The text a file had, None where there was no file. Raises OSError where no file can be."""
    try:
        with place.read() as file:
            data = file.read(1024 * 1024)
            return _UNREADABLE if len(data) == 1024 * 1024 else TextFile.parse(data).text
    except FileNotFoundError:
        return None
    except (NotTextError, PermissionError):
        return _UNREADABLE  # may be written all the same; if not, that is said when it is


def _lines_of(folder: OpenFolder, prefix: str, *, recursive: bool) -> Iterator[str]:
    """Lines for what is in a folder, and below where asked."""
    try:
        entries = sorted(folder.entries(prefix, in_full=True), key=lambda entry: (entry.name.casefold(), entry.name))
    except (PermissionError, PathDeniedError):
        if not prefix:
            raise
        yield f"{prefix}(no permission to look inside)"
        return
    for entry in entries:
        enters = recursive and entry.is_dir and entry.name not in NOISE
        yield f"{prefix}{_shown(entry)}" + ("  (not entered)" if recursive and entry.is_dir and not enters else "")
        if enters:
            yield from _lines_of(folder, f"{prefix}{entry.name}/", recursive=True)


def _shown(entry: Entry) -> str:
    name = entry.name.encode(errors="replace").decode()  # a name that is not UTF-8 must not break the request
    if entry.leads_to is not None:
        return f"{name} -> {entry.leads_to.encode(errors='replace').decode()}"
    if entry.is_dir:
        return f"{name}/"
    if entry.is_file:
        return name if entry.size is None else f"{name}  {human_size(entry.size)}"
    return f"{name}  (device, pipe or socket)"
