"""A search by grep: how each of the two programs is asked for it, and how they run.

Both are a child process: a pattern that never ends is killed at the deadline, where in a thread it would hold the whole
bot. Both print the same rows: `path NUL number mark text`.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from nanobot.agent.tools import grep_child
from nanobot.agent.tools.disk import NOISE
from nanobot.agent.tools.grep_rows import ROW_BYTES, Rows
from nanobot.utils.processes import child_process
from nanobot.utils.text import decode

_SPECIAL = re.compile(r"[*?\[{}]")
"""What a glob does not take for itself; in brackets it does."""
WHOLE_FOLDER = "."
"""The target of a search through all of its folder."""
_PASSED_ON = ("PATH", "SYSTEMROOT", "LANG", "LC_ALL")


class SearchError(Exception):
    """Nothing was found, for a reason; the text is for the model."""


@dataclass(frozen=True, slots=True)
class Search:
    """One search: `target` in `folder`, less what is in `skip`."""

    pattern: str
    folder: Path
    target: str
    glob: str | None
    ignore_case: bool
    skip: tuple[str, ...]
    context: int

    @property
    def is_whole_folder(self) -> bool:
        """Whether it is a folder that is searched, not a file."""
        return self.target == WHOLE_FOLDER

    def by_ripgrep(self, program: str) -> list[str]:
        """As ripgrep takes it: its own command line."""
        options = ["--no-config", "--hidden", "--no-ignore", "--no-messages", "--no-heading", "--color=never", "--null"]
        options += ["--with-filename", "--line-number", "--sort=path", f"--context={self.context}", "--crlf"]
        options += ["--ignore-case"] if self.ignore_case else []
        options += [f"--glob={self.glob}"] if self.glob else []
        options += [f"--glob=!**/{name}/**" for name in sorted(NOISE)]
        options += [f"--glob=!/{_plain(name)}" for name in self.skip]
        return [program, *options, f"--regexp={self.pattern}", "--", self.target]

    def by_python(self) -> list[str]:
        """As our stand-in takes it."""
        script = str(Path(grep_child.__file__))
        options = ["1" if self.ignore_case else "0", str(self.context), self.glob or "", ",".join(sorted(NOISE))]
        options.append("\n".join(self.skip))
        return [sys.executable, "-I", "-S", script, self.pattern, self.target, *options]


async def run_search(argv: list[str], folder: Path, rows: Rows, timeout_s: float) -> None:
    """Run it until there are enough rows. Cancelling leaves no child.

    Raises SearchError where it failed, or took too long, without a single row.
    """
    env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    try:
        async with asyncio.timeout(timeout_s), child_process(argv, cwd=folder, env=env) as child:
            complaint = asyncio.ensure_future(child.stderr.read(4_000))
            try:
                async for row in _rows_of(child.stdout):
                    if not rows.take(row):
                        await child.kill()
                        return
                if await child.wait() >= 2 and not rows.taken:
                    raise SearchError(f"The search failed: {decode(await complaint).strip()[:500]}")
            finally:
                complaint.cancel()
    except TimeoutError:
        if not rows.taken:
            raise SearchError(
                f"The search took longer than {timeout_s:g} s and was stopped. "
                "Use a simpler pattern (no nested repeats like (a+)+) or a smaller folder."
            ) from None
        rows.notes.append(f"Stopped after {timeout_s:g} s: there may be more.")


async def _rows_of(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines of a stream; the end of a line too long to show is dropped."""
    held, skipping = b"", False
    while chunk := await stream.read(ROW_BYTES):
        *whole, held = (held + chunk).split(b"\n")
        for line in whole:
            if not skipping:
                yield decode(line[:ROW_BYTES]).rstrip("\r")
            skipping = False
        if len(held) > ROW_BYTES:
            if not skipping:
                yield decode(held[:ROW_BYTES])
            held, skipping = b"", True
    if held and not skipping:
        yield decode(held)


def _plain(name: str) -> str:
    """A glob for exactly this name."""
    return _SPECIAL.sub(r"[\g<0>]", name)
