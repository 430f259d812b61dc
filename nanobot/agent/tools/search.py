"""The search tools: glob (names) and grep (contents).

Both walk the same files: hidden ones too, but not the folders of SKIPPED_FOLDERS. grep opens each file under the path
policy and hands its content to a child process (`grep_child`), since a pattern that never ends can only be killed.
"""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from nanobot.agent.tools import grep_child
from nanobot.agent.tools.base import Effect, ToolContext, ToolResult, boolean, integer, string, takes
from nanobot.agent.tools.disk import FILE_ERRORS, SKIPPED_FOLDERS, FileTool, file_error_result, opener
from nanobot.messages.types import Provenance, least_trusted
from nanobot.security.files.open import Opener, OpenFolder
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.utils.aio import finish
from nanobot.utils.processes import child_process
from nanobot.utils.text import count_noun, decode

if TYPE_CHECKING:
    from nanobot.security.provenance import ProvenanceStore

_RESULT_CHARS = 15_000
_CHUNK = 1024 * 1024


class SearchError(Exception):
    """The search failed; the text is for the model."""


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

    def __init__(self, paths: PathPolicy, marks: "ProvenanceStore | None" = None, *, timeout_s: float = 20.0) -> None:
        super().__init__(paths, marks)
        self._timeout_s = timeout_s

    async def execute(
        self, pattern: str, path: str = ".", max_results: int = 200, *, ctx: ToolContext | None = None
    ) -> ToolResult:
        """Return matching paths in sorted order."""
        return await self.in_thread(path, ctx, lambda files: self._find(files, pattern, path, max(1, max_results)))

    def _find(self, files: Opener, pattern: str, path: str, max_results: int) -> ToolResult:
        try:
            regex = regex_of_glob(pattern)
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
            for relative in _files_below(folder, files.policy.excluded_below(root)):
                if regex.fullmatch(relative):
                    if len(matches) == max_results:
                        notes.append(f"More than {max_results} files match: narrow the pattern or raise max_results.")
                        break
                    matches.append(_display_path(root, path, relative))
                if time.monotonic() > deadline:
                    notes.append(f"Stopped after {self._timeout_s:g} s: search in a smaller folder for the rest.")
                    break
        if not matches and not notes:
            return ToolResult(f"No file matches {pattern} in {path}.", provenance=Provenance.FILE)
        return ToolResult(_format(matches, notes), provenance=self.provenance_of(root))


@dataclass(slots=True)
class _Matches:
    """What a search has found so far: the files it looked at, with their shown and real paths, and lines to show."""

    files: list[tuple[str, Path]]
    lines: list[str]
    places: set[Path]
    """The files with matches, and where the search began."""
    count: int = 0
    chars: int = 0
    last: tuple[int, int] | None = None
    """File and line of the last row."""


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

    def __init__(self, paths: PathPolicy, marks: "ProvenanceStore | None" = None, *, timeout_s: float = 20.0) -> None:
        super().__init__(paths, marks)
        self._timeout_s = timeout_s

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
        found, notes = _Matches([], [], set()), []
        context = 0 if files_only else min(context, 20)
        options = ["1" if ignore_case else "0", "1" if files_only else "0", str(context)]
        argv = [sys.executable, "-I", "-S", grep_child.__file__, re.escape(pattern) if literal else pattern, *options]
        try:
            feed = partial(_feed, files, path, regex_of_glob(glob) if glob is not None else None, found)
            async with asyncio.timeout(self._timeout_s):
                if await _search(argv, feed, found, max(1, max_results), files_only, context > 0):
                    names = ("file", "files") if files_only else ("match", "matches")
                    more = f"There are more than these {count_noun(found.count, *names)}"
                    notes.append(f"{more}: narrow the search or raise max_results.")
        except TimeoutError:
            if not found.lines:
                return ToolResult.failed(
                    f"The search took longer than {self._timeout_s:g} s and was stopped. "
                    "Use a simpler pattern (no nested repeats like (a+)+) or a smaller folder."
                )
            notes.append(f"Stopped after {self._timeout_s:g} s: there may be more.")
        except SearchError as error:
            return ToolResult.failed(str(error))
        except FILE_ERRORS as error:
            return await asyncio.to_thread(file_error_result, error, path, files)
        except re.error as error:
            return ToolResult.failed(f"{glob!r} is not a valid glob pattern ({error}).")
        if not found.lines:
            return ToolResult(f"Nothing in {path} matches {pattern!r}.", provenance=Provenance.FILE)
        provenance = await asyncio.to_thread(lambda: least_trusted(map(self.provenance_of, found.places)))
        return ToolResult(_format(found.lines, notes), provenance=provenance)


async def _search(
    argv: list[str],
    feed: Callable[[BinaryIO], None],
    found: _Matches,
    max_results: int,
    files_only: bool,
    has_context: bool,
) -> bool:
    """Add to what is found. Return whether there is more. Raises SearchError, and what `feed` raises."""
    has_more = False
    env = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb", 0) as stdin, os.fdopen(write_end, "wb", _CHUNK) as pipe:
        async with child_process(argv, cwd=Path(grep_child.__file__).parent, env=env, stdin=stdin.fileno()) as child:
            stdin.close()
            stderr = asyncio.ensure_future(child.stderr.read(4_000))
            feeding = asyncio.create_task(asyncio.to_thread(feed, pipe))
            try:
                async for line in child.stdout:
                    index, number, mark, text = json.loads(line)
                    if mark == ":" and (found.count == max_results or found.chars > _RESULT_CHARS):
                        has_more = True
                        break
                    shown, real = found.files[index]
                    if has_context and found.last not in (None, (index, number - 1)):
                        found.lines.append("--")
                    found.lines.append(shown if files_only else f"{shown}{mark}{number}{mark} {text}")
                    found.last, found.count = (index, number), found.count + (mark == ":")
                    found.chars += len(found.lines[-1])
                    found.places.add(real)
                if not has_more and await child.wait() >= 2:
                    raise SearchError(f"The search failed: {decode(await stderr).strip()[:500]}")
            finally:
                stderr.cancel()
                if child.returncode is None:
                    await child.kill()
                await finish(asyncio.gather(feeding, return_exceptions=True))  # ends, since nobody reads any more
            feeding.result()
    return has_more


def _feed(files: Opener, path: str, glob: re.Pattern[str] | None, found: _Matches, pipe: BinaryIO) -> None:
    """Write the content of all files that are to be searched. Blocks. Raises SearchError, PathDeniedError, OSError."""

    def send(shown: str, real: Path, open_file: Callable[[], BinaryIO]) -> None:
        try:
            file = open_file()
        except (PathDeniedError, OSError):
            return
        found.files.append((shown, real))
        with file:
            pipe.write(b"F")
            while chunk := _read(file):
                pipe.write(len(chunk).to_bytes(4))
                pipe.write(chunk)
            pipe.write(bytes(4))

    with suppress(BrokenPipeError), pipe:  # nobody reads any more once the search has ended
        root = files.policy.resolve_readable(path, files.granted)
        found.places.add(root)
        if root.is_file():
            send(_display_path(root.parent, str(Path(path).parent), root.name), root, lambda: files.read(path))
            return
        if not root.is_dir():
            kind = f"{path} is a device, pipe or socket." if root.exists() else f"There is no {path}."
            raise SearchError(f"{kind} Give the file or folder to search in.")
        files.policy.resolve_listable(path, files.granted)
        with files.folder(path) as folder:
            for relative in _files_below(folder, files.policy.excluded_below(root)):
                if glob is None or glob.fullmatch(relative):
                    send(_display_path(root, path, relative), root / relative, partial(folder.open, relative))


def _read(file: BinaryIO) -> bytes:
    """Return the next bytes of a file; a part that cannot be read is its end."""
    try:
        return file.read(_CHUNK)
    except OSError:
        return b""


def _files_below(folder: OpenFolder, excluded: Collection[str]) -> Iterator[str]:
    """Yield the paths of all plain files below a folder, relative to it, sorted by name, without those `excluded`."""
    pending = [""]
    while pending:
        path = pending.pop()
        if path and not path.endswith("/"):
            yield path
            continue
        try:
            entries = sorted(folder.entries(path), key=lambda entry: entry.name, reverse=True)
        except (PathDeniedError, OSError):
            if not path:
                raise
            continue
        for entry in entries:
            below = f"{path}{entry.name}"
            if below not in excluded and (entry.is_file or (entry.is_dir and entry.name not in SKIPPED_FOLDERS)):
                pending.append(f"{below}/" if entry.is_dir else below)


def regex_of_glob(glob: str) -> re.Pattern[str]:
    """Return a pattern for a whole relative path. A glob without `/` matches the name in any folder."""
    glob = glob.replace("\\", "/").removeprefix("./") if os.sep == "\\" else glob.removeprefix("./")
    if "/" not in glob.rstrip("/"):
        glob = f"**/{glob}"
    glob = glob.removeprefix("/")
    if glob.endswith("/"):
        glob += "**"
    out, depth, position = [], 0, 0
    while position < len(glob):
        rest = glob[position:]
        character = glob[position]
        if rest.startswith("**/") and (position == 0 or glob[position - 1] == "/"):
            out.append("(?:[^/]+/)*")
            position += 3
        elif rest == "**" and (position == 0 or glob[position - 1] == "/"):
            out.append(".+")
            position += 2
        elif character == "*":
            out.append("[^/]*")
            position += 1
        elif character == "?":
            out.append("[^/]")
            position += 1
        elif character == "[" and (end := glob.find("]", position + 2)) > 0:
            characters = glob[position + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out.append(f"(?!/)[{'^' + characters[1:] if characters[0] in '!^' else characters}]")
            position = end + 1
        elif character == "{" and "}" in rest:
            out.append("(?:")
            depth += 1
            position += 1
        elif character == "," and depth:
            out.append("|")
            position += 1
        elif character == "}" and depth:
            out.append(")")
            depth -= 1
            position += 1
        else:
            out.append(re.escape(character))
            position += 1
    return re.compile("".join(out), re.DOTALL)


def _display_path(root: Path, shown_root: str, relative: str) -> str:
    """Return a path that the other file tools accept as it is."""
    relative = relative.replace(os.sep, "/").encode(errors="replace").decode()
    if shown_root in {"", "."}:
        return relative
    return f"{shown_root.rstrip('/')}/{relative}" if Path(shown_root).parts else str(root / relative)


def _format(lines: list[str], notes: list[str]) -> str:
    return "\n".join([*lines, *([f"({' '.join(notes)})"] if notes else [])])
