"""The search tools: glob (names) and grep (contents).

grep runs ripgrep if it is installed, else a Python fallback (`grep_child`). Both are child processes, since a pattern
that never ends can only be killed, and print the same rows: path, NUL, number, `:` or `-` for context, text. Both
search the same files: hidden ones too, but not the folders of SKIPPED_FOLDERS.
"""

import asyncio
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from nanobot.agent.tools import grep_child
from nanobot.agent.tools.base import Effect, ToolContext, ToolResult, boolean, integer, string, takes
from nanobot.agent.tools.disk import SKIPPED_FOLDERS, FileTool, explain_error, opener
from nanobot.messages.types import Provenance, least_trusted
from nanobot.security.files.open import Opener, OpenFolder
from nanobot.security.files.paths import PathDeniedError
from nanobot.utils.processes import child_process
from nanobot.utils.text import clip_line, count_noun, decode

_ROW_BYTES = 64 * 1024
"""The end of a longer row is dropped."""
_LINE_CHARS = 400
_RESULT_CHARS = 15_000
_TIMEOUT_S = 20.0
_ROW = re.compile(r"(?P<path>[^\0]*)\0(?P<number>\d+)(?P<mark>[:-])(?P<text>.*)", re.DOTALL)
_WHOLE_FOLDER = "."
_GLOB_SPECIAL = re.compile(r"[*?\[{}]")
"""Characters with a meaning in globs; in brackets they stand for themselves."""
_ENVIRONMENT = ("PATH", "SYSTEMROOT", "LANG", "LC_ALL")


class SearchError(Exception):
    """The search failed without results; the text is for the model."""


@dataclass(frozen=True, slots=True)
class _Search:
    """A search that is ready to run: the folder, how results name it, and programs to try, the best one first."""

    root: Path
    shown_root: str
    commands: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Row:
    """A line as the search program printed it."""

    file: str
    number: int
    mark: str
    text: str


class GlobTool(FileTool):
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

    async def execute(
        self, pattern: str, path: str = ".", max_results: int = 200, *, ctx: ToolContext | None = None
    ) -> ToolResult:
        """Return matching paths in sorted order."""
        return await self.in_thread(path, ctx, lambda files: self._find(files, pattern, path, max(1, max_results)))

    def _find(self, files: Opener, pattern: str, path: str, max_results: int) -> ToolResult:
        try:
            regex = re.compile(grep_child.regex_of_glob(pattern))
        except re.error as error:
            return ToolResult.failed(f"{pattern!r} is not a valid glob pattern ({error}).")
        root = files.policy.resolve_listable(path, files.granted)
        if not root.is_dir():
            missing = f"{path} is a file, not a folder." if root.exists() else f"There is no folder {path}."
            return ToolResult.failed(f"{missing} Give the folder to search in.")
        deadline = time.monotonic() + _TIMEOUT_S
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
                    notes.append(f"Stopped after {_TIMEOUT_S:g} s: search in a smaller folder for the rest.")
                    break
        if not matches and not notes:
            return ToolResult(f"No file matches {pattern} in {path}.", provenance=Provenance.FILE)
        return ToolResult(
            _format([_display_path(root, path, name) for name in matches], notes),
            provenance=self.provenance_of(root),
        )


def _names(folder: OpenFolder, relative: str) -> list[tuple[str, bool]]:
    """Return folders and plain files in a folder, and whether each is a folder."""
    try:
        return [(entry.name, entry.is_dir) for entry in folder.entries(relative) if entry.is_dir or entry.is_file]
    except PathDeniedError:
        return []


class GrepTool(FileTool):
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
            search = await asyncio.to_thread(self._prepare, expression, path, files, glob, context, ignore_case)
            rows, notes = await self._run(search, files_only, max(1, max_results))
        except (PathDeniedError, SearchError) as error:
            return ToolResult.failed(str(error))
        except OSError as error:
            return ToolResult.failed(await asyncio.to_thread(explain_error, error, path, files))
        except re.error as error:
            return ToolResult.failed(f"{glob!r} is not a valid glob pattern ({error}).")
        if not rows and not notes:
            return ToolResult(f"Nothing in {path} matches {pattern!r}.", provenance=Provenance.FILE)
        return await asyncio.to_thread(self._report, search, rows, notes, files, files_only, context > 0)

    def _prepare(
        self, pattern: str, path: str, files: Opener, glob: str | None, context: int, ignore_case: bool
    ) -> _Search:
        """Check the path. Raises PathDeniedError, SearchError, OSError, and re.error for the glob."""
        root, target, shown_root = files.policy.resolve_readable(path, files.granted), _WHOLE_FOLDER, path
        skip: Sequence[str] = ()
        if root.is_dir():
            files.policy.resolve_listable(path, files.granted)
            os.stat(f"{root}/.")  # noqa: PTH116 - the search starts there: it must be enterable
            skip = [*files.policy.excluded_below(root)]
        elif root.is_file():
            root, target, shown_root, glob = root.parent, root.name, str(Path(path).parent), None
        else:
            kind = f"{path} is a device, pipe or socket." if root.exists() else f"There is no {path}."
            raise SearchError(f"{kind} Give the file or folder to search in.")
        if glob is not None:
            re.compile(grep_child.regex_of_glob(glob))
        names = sorted(SKIPPED_FOLDERS)
        fallback = [sys.executable, "-I", "-S", grep_child.__file__, pattern, target, "1" if ignore_case else "0"]
        commands = [[*fallback, str(context), glob or "", ",".join(names), "\n".join(skip)]]
        if (program := shutil.which("rg")) is not None:
            options = ["--no-config", "--hidden", "--no-ignore", "--no-messages", "--no-heading", "--color=never"]
            options += ["--null", "--with-filename", "--line-number", "--sort=path", f"--context={context}", "--crlf"]
            options += ["--ignore-case"] if ignore_case else []
            options += [f"--glob={glob}"] if glob else []
            options += [f"--glob=!**/{name}/**" for name in names]
            options += ["--glob=!/" + _GLOB_SPECIAL.sub(r"[\g<0>]", name) for name in skip]
            commands.insert(0, [program, *options, f"--regexp={pattern}", "--", target])
        return _Search(root, shown_root, commands)

    async def _run(self, search: _Search, files_only: bool, max_results: int) -> tuple[list[_Row], list[str]]:
        """Run ripgrep; the fallback if it is not installed or rejects the expression. Return rows and notes."""
        *better, fallback = search.commands
        for command in better:
            with suppress(SearchError):
                return await self._run_command(command, search.root, files_only, max_results)
        return await self._run_command(fallback, search.root, files_only, max_results)

    async def _run_command(
        self, argv: Sequence[str], folder: Path, files_only: bool, max_results: int
    ) -> tuple[list[_Row], list[str]]:
        rows: list[_Row] = []
        matches = chars = 0
        env = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            async with asyncio.timeout(_TIMEOUT_S), child_process(argv, cwd=folder, env=env) as child:
                stderr = asyncio.ensure_future(child.stderr.read(4_000))
                try:
                    async for line in _read_lines(child.stdout):
                        match = _ROW.fullmatch(line)
                        if match is None:
                            continue
                        file = match["path"].removeprefix("./").removeprefix(".\\")
                        row = _Row(file, int(match["number"]), match["mark"], match["text"])
                        if files_only and (row.mark != ":" or (rows and rows[-1].file == row.file)):
                            continue
                        if row.mark == ":" and (matches == max_results or chars > _RESULT_CHARS):
                            await child.kill()
                            names = ("file", "files") if files_only else ("match", "matches")
                            more = f"There are more than these {count_noun(matches, *names)}"
                            return rows, [f"{more}: narrow the search or raise max_results."]
                        matches += row.mark == ":"
                        chars += len(row.file) + (0 if files_only else min(len(row.text), _LINE_CHARS))
                        rows.append(row)
                    if await child.wait() >= 2 and not rows:
                        raise SearchError(f"The search failed: {decode(await stderr).strip()[:500]}")
                finally:
                    stderr.cancel()
        except TimeoutError:
            if not rows:
                raise SearchError(
                    f"The search took longer than {_TIMEOUT_S:g} s and was stopped. "
                    "Use a simpler pattern (no nested repeats like (a+)+) or a smaller folder."
                ) from None
            return rows, [f"Stopped after {_TIMEOUT_S:g} s: there may be more."]
        return rows, []

    def _report(
        self, search: _Search, rows: list[_Row], notes: list[str], files: Opener, files_only: bool, has_context: bool
    ) -> ToolResult:
        """Return the rows that their files have when opened under the path policy. Blocking.

        The search program follows paths by itself: what it finds behind a link that was just created, or under a second
        name of a secret, is left out.
        """
        lines: list[str] = []
        shown: _Row | None = None
        deadline = time.monotonic() + _TIMEOUT_S
        for name, group in groupby(rows, key=lambda row: row.file):
            place = _display_path(search.root, search.shown_root, name)
            for row in _verified_rows([*group], search.root / name, files, deadline):
                if has_context and shown is not None and (shown.file, shown.number + 1) != (row.file, row.number):
                    lines.append("--")
                shown = row
                text = f"{place}{row.mark}{row.number}{row.mark} {clip_line(row.text, _LINE_CHARS)}"
                lines.append(place if files_only else text)
        if left_out := len(rows) - sum(line != "--" for line in lines):
            notes = [*notes, f"{count_noun(left_out, 'row')} left out: not readable, or changed meanwhile."]
        places = {search.root, *(search.root / row.file for row in rows)}
        provenance = least_trusted(self.provenance_of(place) for place in places)
        return ToolResult(_format(lines, notes), provenance=provenance)


def _verified_rows(rows: list[_Row], path: Path, files: Opener, deadline: float) -> list[_Row]:
    """Return those of one file's rows whose lines have this text. Rows come in the order of their lines."""
    verified: list[_Row] = []
    with suppress(PathDeniedError, OSError, StopIteration):
        real, file = files.open(path)
        with file:
            if os.fspath(real) != os.path.normpath(path):  # somebody has put a link there
                return []
            numbered = enumerate(grep_child.lines_of(file), 1)
            for row in rows:
                number, line = next(item for item in numbered if item[0] == row.number or time.monotonic() > deadline)
                if number == row.number and _comparable(line) == _comparable(row.text):
                    verified.append(row)
    return verified


def _comparable(text: str) -> str:
    """Return the part of a line that no decoding changes."""
    return text.encode("ascii", "ignore").decode("ascii")[: _ROW_BYTES // 4]


async def _read_lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield the lines of a stream; the end of a line too long to show is dropped."""
    rest, skipping = b"", False
    while chunk := await stream.read(_ROW_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not skipping:
                yield decode(line[:_ROW_BYTES]).rstrip("\r")
            skipping = False
        if len(rest) > _ROW_BYTES:
            if not skipping:
                yield decode(rest[:_ROW_BYTES])
            rest, skipping = b"", True
    if rest and not skipping:
        yield decode(rest)


def _display_path(root: Path, shown_root: str, relative: str) -> str:
    """Return a path that the other file tools accept as it is."""
    relative = relative.replace(os.sep, "/").encode(errors="replace").decode()
    if shown_root in {"", "."}:
        return relative
    return f"{shown_root.rstrip('/')}/{relative}" if Path(shown_root).parts else str(root / relative)


def _format(lines: list[str], notes: list[str]) -> str:
    return "\n".join([*lines, *([f"({' '.join(notes)})"] if notes else [])])
