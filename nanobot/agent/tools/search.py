"""The search tools: glob (names) and grep (contents).

grep asks ripgrep where it is installed and a small stand-in of ours (`grep_child`) where it is not; `grep_search` says
how. Both look at the same files: hidden ones too, but not into the folders of NOISE.
"""

import asyncio
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from nanobot.agent.tools import grep_child
from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.disk import NOISE, asked_for, explained, in_thread, opener, within
from nanobot.agent.tools.grep_rows import Rows, shown_path, with_notes
from nanobot.agent.tools.grep_search import WHOLE_FOLDER, Search, SearchError, run_search
from nanobot.agent.tools.origins import WordsOf, nothing_known, trust_in
from nanobot.agent.tools.reach import Reach
from nanobot.agent.tools.schema import boolean, integer, string, takes
from nanobot.messages.types import Provenance, least_trusted
from nanobot.security.opening import Opener, OpenFolder
from nanobot.security.paths import PathDeniedError, PathPolicy


class GlobTool(Tool):
    """Files whose path fits a pattern."""

    name = "glob"
    description = (
        "Find files by name: `*.py` in every folder, `src/**/*.py` below src; `{a,b}` and `[abc]` work. .git, "
        "node_modules and the like are left out."
    )
    parameters = takes(
        "pattern",
        pattern=string(),
        path=string("Folder (default: workspace)"),
        max_results=integer("Default 200"),
    )
    effect = Effect.READ
    provenance = Provenance.FILE

    def __init__(self, paths: PathPolicy, words_of: WordsOf = nothing_known, *, timeout_s: float = 20.0) -> None:
        self._paths = paths
        self._words_of = words_of
        self._timeout_s = timeout_s

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """Our own state, and where keys are kept."""
        return await asked_for(lambda: within(self._paths, ctx).wanted_to_read(arguments.get("path", ".")))

    async def execute(
        self, pattern: str, path: str = ".", max_results: int = 200, *, ctx: ToolContext | None = None
    ) -> ToolResult:
        """Find them, in the order of their paths."""
        files = opener(self._paths, ctx)
        return await in_thread(path, files, lambda: self._find(files, pattern, path, max(1, max_results)))

    def _find(self, files: Opener, pattern: str, path: str, max_results: int) -> ToolResult:
        try:
            wanted = re.compile(grep_child.regex_of_glob(pattern))
        except re.error as error:
            return ToolResult.failed(f"{pattern!r} is no glob pattern ({error}).")
        root = files.policy.listable(path, files.granted)
        if not root.is_dir():
            missing = f"{path} is a file, not a folder." if root.exists() else f"There is no folder {path}."
            return ToolResult.failed(f"{missing} Give the folder to search in.")
        deadline = time.monotonic() + self._timeout_s
        found: list[str] = []
        notes = []
        with files.folder(path) as folder:
            for relative in grep_child.files_below(partial(_names, folder), NOISE, files.policy.left_out_of(root)):
                if wanted.fullmatch(relative):
                    if len(found) == max_results:
                        notes.append(f"More than {max_results} files fit: narrow the pattern or raise max_results.")
                        break
                    found.append(relative)
                if time.monotonic() > deadline:
                    notes.append(f"Stopped after {self._timeout_s:g} s: search in a smaller folder for the rest.")
                    break
        if not found and not notes:
            return ToolResult(f"No file fits {pattern} in {path}.", provenance=Provenance.FILE)
        return ToolResult(
            with_notes([shown_path(root, path, name) for name in found], notes),
            provenance=trust_in(root, self._words_of),
        )


def _names(folder: OpenFolder, relative: str) -> list[tuple[str, bool]]:
    """What glob sees in a folder: folders and plain files."""
    try:
        return [(entry.name, entry.is_dir) for entry in folder.entries(relative) if entry.is_dir or entry.is_file]
    except PathDeniedError:
        return []


class GrepTool(Tool):
    """Lines that fit a regular expression."""

    name = "grep"
    description = (
        "Search text files for a regular expression; rows are `path:line: text`. .git, node_modules and the like are "
        "left out."
    )
    parameters = takes(
        "pattern",
        pattern=string(),
        path=string("File or folder (default: workspace)"),
        glob=string("Only files like *.py"),
        ignore_case=boolean(),
        literal=boolean(),
        context=integer("Lines around each", minimum=0),
        files_only=boolean(),
        max_results=integer("Default 100"),
    )
    effect = Effect.READ
    provenance = Provenance.FILE

    def __init__(
        self,
        paths: PathPolicy,
        words_of: WordsOf = nothing_known,
        *,
        timeout_s: float = 20.0,
        ripgrep: bool = True,
    ) -> None:
        self._paths = paths
        self._words_of = words_of
        self._timeout_s = timeout_s
        self._ripgrep = ripgrep

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """Our own state, and where keys are kept."""
        return await asked_for(lambda: within(self._paths, ctx).wanted_to_read(arguments.get("path", ".")))

    async def execute(
        self,
        pattern: str,
        path: str = ".",
        glob: str | None = None,
        ignore_case: bool = False,
        literal: bool = False,
        context: int = 0,
        files_only: bool = False,
        max_results: int = 100,
        *,
        ctx: ToolContext | None = None,
    ) -> ToolResult:
        """Search. A pattern or a tree that takes too long ends in a result that says so. Cancelling leaves no child."""
        files = opener(self._paths, ctx)
        asked = re.escape(pattern) if literal else pattern
        context = 0 if files_only else min(context, 20)
        try:
            search = await asyncio.to_thread(self._search, asked, path, files, glob, context, ignore_case=ignore_case)
            shown_root = path if search.is_whole_folder else str(Path(path).parent)
            rows = await self._found(search, partial(Rows, shown_root, search.folder, files_only, max_results))
        except (PathDeniedError, SearchError) as error:
            return ToolResult.failed(str(error))
        except OSError as error:
            return ToolResult.failed(await asyncio.to_thread(explained, error, path, files))
        except re.error as error:
            return ToolResult.failed(f"{glob!r} is no glob pattern ({error}).")
        lines = await asyncio.to_thread(rows.as_they_stand, files, time.monotonic() + self._timeout_s)
        if not lines and not rows.notes:
            return ToolResult(f"Nothing in {path} matches {pattern!r}.", provenance=Provenance.FILE)
        words = await asyncio.to_thread(lambda: least_trusted(trust_in(file, self._words_of) for file in rows.files))
        return ToolResult(with_notes(lines, rows.notes), provenance=words)

    def _search(
        self, pattern: str, path: str, files: Opener, glob: str | None, context: int, *, ignore_case: bool
    ) -> Search:
        """What to search, and where. Raises PathDeniedError, SearchError, OSError; re.error for the glob."""
        root = files.policy.readable(path, files.granted)
        is_folder = root.is_dir()
        if not is_folder and not root.is_file():
            kind = f"{path} is a device, pipe or socket." if root.exists() else f"There is no {path}."
            raise SearchError(f"{kind} Give the file or folder to search in.")
        if is_folder:
            files.policy.listable(path, files.granted)
            os.stat(f"{root}/.")  # noqa: PTH116 - the search starts in it: it must let us in
        if glob is not None:
            re.compile(grep_child.regex_of_glob(glob))
        if not is_folder:
            return Search(pattern, root.parent, root.name, None, ignore_case, (), context)
        skip = tuple(files.policy.left_out_of(root))
        return Search(pattern, root, WHOLE_FOLDER, glob, ignore_case, skip, context)

    async def _found(self, search: Search, new_rows: Callable[[], Rows]) -> Rows:
        """By ripgrep; by our stand-in where there is none, or the expression is one that only Python knows."""
        program = await asyncio.to_thread(shutil.which, "rg") if self._ripgrep else None
        if program is not None:
            rows = new_rows()
            with suppress(SearchError):
                await run_search(search.by_ripgrep(program), search.folder, rows, self._timeout_s)
                return rows
        rows = new_rows()
        await run_search(search.by_python(), search.folder, rows, self._timeout_s)
        return rows
