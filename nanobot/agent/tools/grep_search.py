"""How grep runs its two programs, ripgrep and the Python fallback.

Both run as child processes: a pattern that never ends is killed at the timeout, where in a thread it would block the
whole bot. Both print the same rows: `path NUL number mark text`.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from nanobot.agent.tools import grep_child
from nanobot.agent.tools.disk import SKIPPED_FOLDERS
from nanobot.agent.tools.grep_rows import ROW_BYTES, GrepRows
from nanobot.utils.processes import child_process
from nanobot.utils.text import decode

_GLOB_SPECIAL = re.compile(r"[*?\[{}]")
"""Characters with a meaning in globs; in brackets they stand for themselves."""
WHOLE_FOLDER = "."
"""The target of a search through the whole folder."""
_ENVIRONMENT = ("PATH", "SYSTEMROOT", "LANG", "LC_ALL")


class SearchError(Exception):
    """The search failed without results; the text is for the model."""


@dataclass(frozen=True, slots=True)
class Search:
    """One search: `target` in `folder`, without the paths in `skip`."""

    pattern: str
    folder: Path
    target: str
    glob: str | None
    ignore_case: bool
    skip: tuple[str, ...]
    context: int

    @property
    def is_whole_folder(self) -> bool:
        return self.target == WHOLE_FOLDER

    def ripgrep_argv(self, program: str) -> list[str]:
        options = ["--no-config", "--hidden", "--no-ignore", "--no-messages", "--no-heading", "--color=never", "--null"]
        options += ["--with-filename", "--line-number", "--sort=path", f"--context={self.context}", "--crlf"]
        options += ["--ignore-case"] if self.ignore_case else []
        options += [f"--glob={self.glob}"] if self.glob else []
        options += [f"--glob=!**/{name}/**" for name in sorted(SKIPPED_FOLDERS)]
        options += [f"--glob=!/{_escape_glob(name)}" for name in self.skip]
        return [program, *options, f"--regexp={self.pattern}", "--", self.target]

    def python_argv(self) -> list[str]:
        script = str(Path(grep_child.__file__))
        options = [
            "1" if self.ignore_case else "0",
            str(self.context),
            self.glob or "",
            ",".join(sorted(SKIPPED_FOLDERS)),
        ]
        options.append("\n".join(self.skip))
        return [sys.executable, "-I", "-S", script, self.pattern, self.target, *options]


async def run_search(argv: list[str], folder: Path, rows: GrepRows, timeout_s: float) -> None:
    """Run the search until there are enough rows. Cancelling leaves no child process.

    Raises SearchError if it fails or times out without a single row.
    """
    env = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    try:
        async with asyncio.timeout(timeout_s), child_process(argv, cwd=folder, env=env) as child:
            stderr = asyncio.ensure_future(child.stderr.read(4_000))
            try:
                async for row in _read_rows(child.stdout):
                    if not rows.add(row):
                        await child.kill()
                        return
                if await child.wait() >= 2 and not rows.rows:
                    raise SearchError(f"The search failed: {decode(await stderr).strip()[:500]}")
            finally:
                stderr.cancel()
    except TimeoutError:
        if not rows.rows:
            raise SearchError(
                f"The search took longer than {timeout_s:g} s and was stopped. "
                "Use a simpler pattern (no nested repeats like (a+)+) or a smaller folder."
            ) from None
        rows.notes.append(f"Stopped after {timeout_s:g} s: there may be more.")


async def _read_rows(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield the lines of a stream; the end of a line too long to show is dropped."""
    rest, skipping = b"", False
    while chunk := await stream.read(ROW_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not skipping:
                yield decode(line[:ROW_BYTES]).rstrip("\r")
            skipping = False
        if len(rest) > ROW_BYTES:
            if not skipping:
                yield decode(rest[:ROW_BYTES])
            rest, skipping = b"", True
    if rest and not skipping:
        yield decode(rest)


def _escape_glob(name: str) -> str:
    """Return a glob for exactly this name."""
    return _GLOB_SPECIAL.sub(r"[\g<0>]", name)
