"""The log, set up once a process: loguru writes it, everybody else speaks to the standard library's `logging`.

So our own words and those of every SDK take one road. Loguru is imported at the first record that is written: a silent
one-shot does not pay for it.
"""

import logging
import os
import re
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

_KEEP = 5
_ROTATE_BYTES = 10_000_000
_CHATTY = (
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
    "asyncio",
    "LiteLLM",
    "openai",
    "urllib3",
    "markdown_it",
    "discord",
)
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_TRACEBACK = logging.Formatter()


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where the log goes: to a rotating file, to stderr from a level on, or both."""

    file: Path | None = None
    file_level: str = "INFO"
    stderr_level: str | None = None


class _ToLoguru(logging.Handler):
    """The bridge. Never raises: a log that cannot be written costs the log, not the turn."""

    def __init__(self, place: LogPlace, clean: Callable[[str], str]) -> None:
        levels = [place.file_level if place.file else None, place.stderr_level]
        super().__init__(min(logging.getLevelNamesMapping()[level] for level in levels if level))
        self._place = place
        self._clean = clean
        self._opened = False
        self._told = False

    def emit(self, record: logging.LogRecord) -> None:
        from loguru import logger  # the first record pays for it

        if not self._opened:
            self._opened = True
            self._open_sinks()
        try:
            level: str | int = logger.level(record.levelname).name
        except ValueError:
            level = record.levelno
        origin = {"source": record.name}
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{_TRACEBACK.formatException(record.exc_info)}"
        try:
            logger.bind(**origin).log(level, "{}", _harmless(self._clean(text)))
        except (OSError, ValueError) as error:  # a full disk, a stream that was closed
            self._tell(getattr(error, "strerror", None) or str(error))

    def _open_sinks(self) -> None:
        from loguru import logger

        logger.remove()
        line = "{time:YYYY-MM-DD HH:mm:ss.SSS} {level: <7} {extra[source]} {message}"
        logger.configure(extra={"source": "nanobot"})
        if self._place.stderr_level and sys.stderr is not None:
            logger.add(
                _Unblocked(sys.stderr),
                level=self._place.stderr_level,
                format=line,
                colorize=False,
                backtrace=False,
                diagnose=False,
                catch=False,
            )
        if self._place.file:
            try:
                self._place.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                logger.add(
                    self._place.file,
                    level=self._place.file_level,
                    format=line,
                    rotation=_ROTATE_BYTES,
                    retention=_KEEP,
                    opener=_private,
                    encoding="utf-8",
                    backtrace=False,
                    diagnose=False,
                    catch=False,
                )
            except OSError as error:
                self._tell(error.strerror or str(error))

    def _tell(self, reason: str) -> None:
        """Once, that the log is not written; the turn goes on without it."""
        if not self._told and sys.stderr is not None:
            self._told = True
            with suppress(OSError, ValueError):
                print(f"No log is written: {self._place.file or 'stderr'}: {reason}.", file=sys.stderr)  # noqa: T201


def _harmless(text: str) -> str:
    """The text without what would steer the terminal it is read in; a line that begins at the margin is a record.

    Strangers' names, and what platforms say, stand in records.
    """
    if _STEERS.search(text):
        text = _STEERS.sub(lambda found: repr(found[0])[1:-1], text)
    return text.replace("\n", "\n  ")


class _Unblocked:
    """A stream, as far as somebody reads it: a pager that waits, or a stopped terminal, must not stop us.

    What it does not take at once is left out; the file has it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write what it takes. Raises OSError."""
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError, AttributeError):
            descriptor = -1
        if descriptor < 0 or os.name == "nt":  # where streams cannot be asked
            self._stream.write(text)
            self._stream.flush()
            return
        data = text.encode(errors="backslashreplace")
        for start in range(0, len(data), select.PIPE_BUF):  # so much a pipe takes whole, once it takes anything
            if not select.select([], [descriptor], [], 0)[1]:
                return
            os.write(descriptor, data[start : start + select.PIPE_BUF])


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def set_up_logging(place: LogPlace, clean: Callable[[str], str] = str) -> None:
    """Send every record of this process to `place`. Calling it again moves the log.

    `clean` takes out of each record, traceback and all, what no log may hold.
    """
    root = logging.getLogger()
    for handler in [*root.handlers]:
        if isinstance(handler, _ToLoguru):
            root.removeHandler(handler)
    if not (place.file or place.stderr_level):
        return
    handler = _ToLoguru(place, clean)
    root.addHandler(handler)
    root.setLevel(handler.level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(handler.level, logging.WARNING))
