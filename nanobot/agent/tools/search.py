"""The search tools: glob (names) and grep (contents).

grep asks ripgrep where it is installed and a small stand-in of ours (`grep_child`) where it is not. Both run as a child
process: a pattern that never ends is killed at the deadline, where in a thread it would hold the whole bot. Both print
the same rows, and look at the same files: hidden ones too, but not into the folders of NOISE.
"""

import asyncio
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from nanobot.agent.tools import grep_child
from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.disk import NOISE, asked_for, explained, in_thread, opener, within
from nanobot.agent.tools.origins import WordsOf, nothing_known, trust_in
from nanobot.agent.tools.reach import Reach
from nanobot.agent.tools.schema import boolean, integer, string, takes
from nanobot.messages.types import Provenance, least_trusted
from nanobot.security.opening import Opener, OpenFolder
from nanobot.security.paths import PathDeniedError, PathPolicy
from nanobot.utils.processes import child_process
from nanobot.utils.text import clip_line, counted, decode

_SPECIAL = re.compile(r"[*?\[{}]")
"""What a glob does not take for itself; in brackets it does."""
_LINE_CHARS = 400
_RESULT_CHARS = 15_000
_ROW_BYTES = 64 * 1024
_ROW = re.compile(r"(?P<path>[^\0]*)\0(?P<number>\d+)(?P<mark>[:-])(?P<text>.*)", re.DOTALL)


class GlobTool(Tool):
    """Files whose path fits a pattern."""

    name = "glob"
    description = (
        "Find files by name. `*.py` finds them in every folder, `src/**/*.py` below src; `{a,b}` and `[abc]` work too. "
        "Folders like .git and node_modules are left out."
    )
    parameters = takes(
        "pattern",
        pattern=string("Such as `docs/*.md`"),
        path=string("Folder (default: the workspace)"),
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
            _with_notes([_shown_path(root, path, name) for name in found], notes),
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
        "Search files for a regular expression; rows come as `path:line: text`. "
        "Binary files, .git, node_modules and the like are left out."
    )
    parameters = takes(
        "pattern",
        pattern=string("Matched in each line"),
        path=string("File or folder (default: the workspace)"),
        glob=string("Only files like `*.py`"),
        ignore_case=boolean("Ignore case"),
        literal=boolean("pattern is plain text"),
        context=integer("Lines around each match", minimum=0),
        files_only=boolean("Only names of files"),
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
        try:
            root = await asyncio.to_thread(files.policy.readable, path, files.granted)
            is_dir = await asyncio.to_thread(root.is_dir)
            if is_dir:
                await asyncio.to_thread(files.policy.listable, path, files.granted)
            if not is_dir and not await asyncio.to_thread(root.is_file):
                there = await asyncio.to_thread(root.exists)
                kind = f"{path} is a device, pipe or socket." if there else f"There is no {path}."
                return ToolResult.failed(f"{kind} Give the file or folder to search in.")
            if is_dir:
                await asyncio.to_thread(os.stat, f"{root}/.")  # the search starts in it: it must let us in
            if glob is not None:
                re.compile(grep_child.regex_of_glob(glob))
        except PathDeniedError as error:
            return ToolResult.failed(str(error))
        except OSError as error:
            return ToolResult.failed(await asyncio.to_thread(explained, error, path, files))
        except re.error as error:
            return ToolResult.failed(f"{glob!r} is no glob pattern ({error}).")
        search = _Search(
            pattern=re.escape(pattern) if literal else pattern,
            folder=root if is_dir else root.parent,
            target="." if is_dir else root.name,
            glob=glob if is_dir else None,
            ignore_case=ignore_case,
            skip=tuple(await asyncio.to_thread(files.policy.left_out_of, root)) if is_dir else (),
            context=0 if files_only else min(context, 20),
        )
        shown_root = path if is_dir else str(Path(path).parent)
        program = await asyncio.to_thread(shutil.which, "rg") if self._ripgrep else None
        problem = None
        rows = _Rows(shown_root, search.folder, files_only, max_results)
        if program is not None:
            problem = await self._run([program, *search.for_ripgrep()], search.folder, rows)
        if program is None or problem is not None:  # an expression ripgrep does not know may be one that Python does
            rows = _Rows(shown_root, search.folder, files_only, max_results)
            problem = await self._run(search.for_python(), search.folder, rows)
        if problem is not None:
            return ToolResult.failed(problem)
        lines = await asyncio.to_thread(rows.as_they_stand, files, time.monotonic() + self._timeout_s)
        if not lines and not rows.notes:
            return ToolResult(f"Nothing in {path} matches {pattern!r}.", provenance=Provenance.FILE)
        words = await asyncio.to_thread(lambda: least_trusted(trust_in(file, self._words_of) for file in rows.files))
        return ToolResult(_with_notes(lines, rows.notes), provenance=words)

    async def _run(self, argv: list[str], folder: Path, rows: "_Rows") -> str | None:
        """Read rows until there are enough. What is wrong with the search, if something is."""
        env = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "LANG", "LC_ALL") if name in os.environ}
        try:
            async with asyncio.timeout(self._timeout_s), child_process(argv, cwd=folder, env=env) as child:
                complaint = asyncio.ensure_future(child.stderr.read(4_000))
                try:
                    async for row in _rows_of(child.stdout):
                        if not rows.take(row):
                            await child.kill()
                            return None
                    if await child.wait() >= 2 and not rows.taken:
                        return f"The search failed: {decode(await complaint).strip()[:500]}"
                finally:
                    complaint.cancel()
        except TimeoutError:
            if not rows.taken:
                return (
                    f"The search took longer than {self._timeout_s:g} s and was stopped. "
                    "Use a simpler pattern (no nested repeats like (a+)+) or a smaller folder."
                )
            rows.notes.append(f"Stopped after {self._timeout_s:g} s: there may be more.")
        return None


@dataclass(frozen=True, slots=True)
class _Search:
    """One search, and how each of the two programs is asked for it."""

    pattern: str
    folder: Path
    target: str
    glob: str | None
    ignore_case: bool
    skip: tuple[str, ...]
    context: int

    def for_ripgrep(self) -> list[str]:
        options = ["--no-config", "--hidden", "--no-ignore", "--no-messages", "--no-heading", "--color=never", "--null"]
        options += ["--with-filename", "--line-number", "--sort=path", f"--context={self.context}", "--crlf"]
        options += ["--ignore-case"] if self.ignore_case else []
        options += [f"--glob={self.glob}"] if self.glob else []
        options += [f"--glob=!**/{name}/**" for name in sorted(NOISE)]
        options += [f"--glob=!/{_plain(name)}" for name in self.skip]
        return [*options, f"--regexp={self.pattern}", "--", self.target]

    def for_python(self) -> list[str]:
        script = str(Path(grep_child.__file__))
        options = ["1" if self.ignore_case else "0", str(self.context), self.glob or "", ",".join(sorted(NOISE))]
        options.append("\n".join(self.skip))
        return [sys.executable, "-I", "-S", script, self.pattern, self.target, *options]


@dataclass(frozen=True, slots=True)
class _Taken:
    """A row as the search told it, and the line made of it."""

    file: str
    number: int
    text: str
    line: str


class _Rows:
    """Rows of a search as they come, until there are enough."""

    def __init__(self, shown_root: str, root: Path, files_only: bool, max_results: int) -> None:
        self.taken: list[_Taken | None] = []
        """None where something was left out between two rows."""
        self.notes: list[str] = []
        self._shown_root = shown_root
        self._root = root
        self._files_only = files_only
        self._max = max(1, max_results)
        self._matches = 0
        self._chars = 0
        self._last_file = ""

    @property
    def files(self) -> set[Path]:
        """Where the rows were found."""
        return {self._root} | {self._root / one.file for one in self.taken if one is not None}

    def take(self, row: str) -> bool:
        """One row of output. False once no more are wanted."""
        match = _ROW.fullmatch(row)
        if match is None:
            if row == "--" and not self._files_only and self.taken:
                self.taken.append(None)
            return True
        found = match["path"].removeprefix("./").removeprefix(".\\")
        is_match = match["mark"] == ":"
        new_file = found != self._last_file
        if is_match and (new_file or not self._files_only):
            if self._matches == self._max or self._chars > _RESULT_CHARS:
                what = "file" if self._files_only else "match"
                said = counted(self._matches, what, "files" if self._files_only else "matches")
                self.notes.append(f"There are more than these {said}: narrow the search or raise max_results.")
                return False
            self._matches += 1
        name = _shown_path(self._root, self._shown_root, found)
        self._last_file = found
        if new_file or not self._files_only:
            rest = f"{match['mark']}{match['number']}{match['mark']} {clip_line(match['text'], _LINE_CHARS)}"
            line = name if self._files_only else f"{name}{rest}"
            self.taken.append(_Taken(found, int(match["number"]), match["text"], line))
            self._chars += len(line) + 1
        return True

    def as_they_stand(self, files: Opener, deadline: float) -> list[str]:
        """The lines that are in their files when those are opened as every file is.

        The program that searched follows paths by itself: what it found behind a link that came in between, or under
        a second name of a secret, is not told.
        """
        lines: list[str] = []
        held = _Held(files, self._root, deadline)
        for one in self.taken:
            if one is None:
                lines += ["--"] if lines and lines[-1] != "--" else []
            elif held.has(one):
                lines.append(one.line)
        held.close()
        if left_out := sum(one is not None for one in self.taken) - sum(line != "--" for line in lines):
            self.notes.append(f"{counted(left_out, 'row')} left out: not readable, or changed meanwhile.")
        return lines


class _Held:
    """The file that rows were found in, read along once from its beginning."""

    def __init__(self, files: Opener, root: Path, deadline: float) -> None:
        self._files = files
        self._root = root
        self._deadline = deadline
        self._name: str | None = None
        self._file: BinaryIO | None = None
        self._lines: Iterator[str] = iter(())
        self._number = 0
        self._line = ""

    def has(self, row: _Taken) -> bool:
        """Whether the file has this text in that line. Rows come in the order of their lines."""
        try:
            if row.file != self._name:
                self._begin(row.file)
            while self._number < row.number and time.monotonic() < self._deadline:
                self._line = next(self._lines)
                self._number += 1
        except (PathDeniedError, OSError, StopIteration):
            return False
        return self._number == row.number and _compared(self._line) == _compared(row.text)

    def _begin(self, name: str) -> None:
        self.close()
        self._name, self._number, self._lines = name, 0, iter(())
        asked = self._root / name
        real, self._file = self._files.open(asked)
        if os.fspath(real) == os.path.normpath(asked):  # else somebody has put a link there
            self._lines = grep_child.lines_of(self._file)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _compared(text: str) -> str:
    """What of a line no decoding changes."""
    return text.encode("ascii", "ignore").decode("ascii")[: _ROW_BYTES // 4]


async def _rows_of(stream: asyncio.StreamReader) -> Any:
    """Lines of a stream; the end of a line too long to show is dropped."""
    held, skipping = b"", False
    while chunk := await stream.read(_ROW_BYTES):
        *whole, held = (held + chunk).split(b"\n")
        for line in whole:
            if not skipping:
                yield decode(line[:_ROW_BYTES]).rstrip("\r")
            skipping = False
        if len(held) > _ROW_BYTES:
            if not skipping:
                yield decode(held[:_ROW_BYTES])
            held, skipping = b"", True
    if held and not skipping:
        yield decode(held)


def _plain(name: str) -> str:
    """A glob for exactly this name."""
    return _SPECIAL.sub(r"[\g<0>]", name)


def _shown_path(root: Path, asked: str, relative: str) -> str:
    """A path that can be handed to the other file tools as it stands."""
    relative = relative.replace(os.sep, "/").encode(errors="replace").decode()
    if asked in {"", "."}:
        return relative
    return f"{asked.rstrip('/')}/{relative}" if Path(asked).parts else str(root / relative)


def _with_notes(lines: list[str], notes: list[str]) -> str:
    return "\n".join([*_trimmed(lines), *([f"({' '.join(notes)})"] if notes else [])])


def _trimmed(lines: list[str]) -> Iterator[str]:
    """Without a separator that has nothing behind it."""
    return iter(lines[:-1] if lines and lines[-1] == "--" else lines)
