"""The search tools: glob (names) and grep (contents).

grep runs ripgrep if it is installed, else a Python fallback (`grep_child`); see `grep_search`. Both search the same
files: hidden ones too, but not the folders of SKIPPED_FOLDERS.
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
from nanobot.agent.tools.access import Access
from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult, boolean, integer, string, takes
from nanobot.agent.tools.disk import SKIPPED_FOLDERS, explain_error, in_thread, opener, read_access
from nanobot.agent.tools.file_provenance import ProvenanceOf, file_provenance, untracked_files
from nanobot.agent.tools.grep_rows import GrepRows, display_path, format_lines
from nanobot.agent.tools.grep_search import WHOLE_FOLDER, Search, SearchError, run_search
from nanobot.messages.types import Provenance, least_trusted
from nanobot.security.files.open import Opener, OpenFolder
from nanobot.security.files.paths import PathDeniedError, PathPolicy


class GlobTool(Tool):
    name = "glob"
    description = "Find files by a glob pattern of their path. Skips .git, node_modules and similar folders."
    parameters = takes(
        "pattern",
        pattern=string("Glob such as *.py (in every folder), docs/*.md or src/**/*.py; {a,b} and [abc] work"),
        path=string("Folder to search, relative to the workspace (default: the workspace)"),
        max_results=integer("Most paths to return (default 200)"),
    )
    effect = Effect.READ
    provenance = Provenance.FILE

    def __init__(
        self, paths: PathPolicy, provenance_of: ProvenanceOf = untracked_files, *, timeout_s: float = 20.0
    ) -> None:
        self._paths = paths
        self._provenance_of = provenance_of
        self._timeout_s = timeout_s

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        return await read_access(self._paths, arguments.get("path", "."), ctx)

    async def execute(
        self, pattern: str, path: str = ".", max_results: int = 200, *, ctx: ToolContext | None = None
    ) -> ToolResult:
        """Return matching paths in sorted order."""
        files = opener(self._paths, ctx)
        return await in_thread(path, files, lambda: self._find(files, pattern, path, max(1, max_results)))

    def _find(self, files: Opener, pattern: str, path: str, max_results: int) -> ToolResult:
        try:
            regex = re.compile(grep_child.regex_of_glob(pattern))
        except re.error as error:
            return ToolResult.failed(f"{pattern!r} is not a valid glob pattern ({error}).")
        root = files.policy.resolve_listable(path, files.granted)
        if not root.is_dir():
            missing = f"{path} is a file, not a folder." if root.exists() else f"There is no folder {path}."
            return ToolResult.failed(f"{missing} Give the folder to search in.")
        deadline = time.monotonic() + self._timeout_s
        matches: list[str] = []
        notes = []
        with files.folder(path) as folder:
            for relative in grep_child.files_below(
                partial(_names, folder), SKIPPED_FOLDERS, files.policy.excluded_below(root)
            ):
                if regex.fullmatch(relative):
                    if len(matches) == max_results:
                        notes.append(f"More than {max_results} files match: narrow the pattern or raise max_results.")
                        break
                    matches.append(relative)
                if time.monotonic() > deadline:
                    notes.append(f"Stopped after {self._timeout_s:g} s: search in a smaller folder for the rest.")
                    break
        if not matches and not notes:
            return ToolResult(f"No file matches {pattern} in {path}.", provenance=Provenance.FILE)
        return ToolResult(
            format_lines([display_path(root, path, name) for name in matches], notes),
            provenance=file_provenance(root, self._provenance_of),
        )


def _names(folder: OpenFolder, relative: str) -> list[tuple[str, bool]]:
    """Return folders and plain files in a folder, and whether each is a folder."""
    try:
        return [(entry.name, entry.is_dir) for entry in folder.entries(relative) if entry.is_dir or entry.is_file]
    except PathDeniedError:
        return []


class GrepTool(Tool):
    name = "grep"
    description = (
        "Search the contents of text files for a regular expression; results are `path:line: text`. Skips .git, "
        "node_modules and similar folders."
    )
    parameters = takes(
        "pattern",
        pattern=string("Regular expression, matched line by line"),
        path=string("File or folder, relative to the workspace (default: the workspace)"),
        glob=string("Only files whose name matches, such as *.py"),
        ignore_case=boolean("Ignore upper and lower case"),
        literal=boolean("Search for the pattern as plain text"),
        context=integer("Lines to show before and after each match", minimum=0),
        files_only=boolean("Return only the paths of files that match"),
        max_results=integer("Most matches to return (default 100)"),
    )
    effect = Effect.READ
    provenance = Provenance.FILE

    def __init__(
        self,
        paths: PathPolicy,
        provenance_of: ProvenanceOf = untracked_files,
        *,
        timeout_s: float = 20.0,
        ripgrep: bool = True,
    ) -> None:
        self._paths = paths
        self._provenance_of = provenance_of
        self._timeout_s = timeout_s
        self._ripgrep = ripgrep

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        return await read_access(self._paths, arguments.get("path", "."), ctx)

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
        """Search. A search that takes too long ends in a result that says so. Cancelling leaves no child process."""
        files = opener(self._paths, ctx)
        expression = re.escape(pattern) if literal else pattern
        context = 0 if files_only else min(context, 20)
        try:
            search = await asyncio.to_thread(
                self._search, expression, path, files, glob, context, ignore_case=ignore_case
            )
            shown_root = path if search.is_whole_folder else str(Path(path).parent)
            rows = await self._run(search, partial(GrepRows, shown_root, search.folder, files_only, max_results))
        except (PathDeniedError, SearchError) as error:
            return ToolResult.failed(str(error))
        except OSError as error:
            return ToolResult.failed(await asyncio.to_thread(explain_error, error, path, files))
        except re.error as error:
            return ToolResult.failed(f"{glob!r} is not a valid glob pattern ({error}).")
        lines = await asyncio.to_thread(rows.verified_lines, files, time.monotonic() + self._timeout_s)
        if not lines and not rows.notes:
            return ToolResult(f"Nothing in {path} matches {pattern!r}.", provenance=Provenance.FILE)
        known = (file_provenance(file, self._provenance_of) for file in rows.files)
        provenance = await asyncio.to_thread(lambda: least_trusted(known))
        return ToolResult(format_lines(lines, rows.notes), provenance=provenance)

    def _search(
        self, pattern: str, path: str, files: Opener, glob: str | None, context: int, *, ignore_case: bool
    ) -> Search:
        """Prepare the search. Raises PathDeniedError, SearchError, OSError; re.error for the glob."""
        root = files.policy.resolve_readable(path, files.granted)
        is_folder = root.is_dir()
        if not is_folder and not root.is_file():
            kind = f"{path} is a device, pipe or socket." if root.exists() else f"There is no {path}."
            raise SearchError(f"{kind} Give the file or folder to search in.")
        if is_folder:
            files.policy.resolve_listable(path, files.granted)
            os.stat(f"{root}/.")  # noqa: PTH116 - the search starts there: it must be enterable
        if glob is not None:
            re.compile(grep_child.regex_of_glob(glob))
        if not is_folder:
            return Search(pattern, root.parent, root.name, None, ignore_case, (), context)
        skip = tuple(files.policy.excluded_below(root))
        return Search(pattern, root, WHOLE_FOLDER, glob, ignore_case, skip, context)

    async def _run(self, search: Search, new_rows: Callable[[], GrepRows]) -> GrepRows:
        """Run ripgrep; the fallback if it is not installed or rejects the expression."""
        program = await asyncio.to_thread(shutil.which, "rg") if self._ripgrep else None
        if program is not None:
            rows = new_rows()
            with suppress(SearchError):
                await run_search(search.ripgrep_argv(program), search.folder, rows, self._timeout_s)
                return rows
        rows = new_rows()
        await run_search(search.python_argv(), search.folder, rows, self._timeout_s)
        return rows
