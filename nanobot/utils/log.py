"""Logging setup, once a process: all code uses the standard library's `logging`, and loguru writes the records.

So our records and those of every SDK go the same way. Loguru is imported with the first record, so a silent one-shot
run does not load it.
"""

import logging
import os
import re
import select
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from nanobot.utils.storage_error import os_reason, strip_error_numbers

if TYPE_CHECKING:
    import loguru

_RETENTION = 5
_ROTATE_BYTES = 10_000_000
_NOISY_LOGGERS = (
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
    "nio",
    "asyncio",
    "LiteLLM",
    "openai",
    "urllib3",
    "markdown_it",
    "discord",
)
_CONTROL_CHARS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_TRACEBACK = logging.Formatter()
_INDENT = len("18:04 ")
_RECORD = re.compile(r"(?P<day>\d{4}-\d\d-\d\d) (?P<time>\d\d:\d\d)[\d:.]* (?P<level>\S+) +\S+ (?P<text>.*)")
"""The first line of a record in a log file."""
_COLOURS = {"WARNING": "33", "ERROR": "31", "CRITICAL": "31"}
_SUBJECT = re.compile(r"^\S+:\S*")
"""What a line is about, at its beginning: a channel or a session."""


@dataclass(frozen=True, slots=True)
class LogTarget:
    """Where the log goes: a rotating file, stderr from a level on, or both."""

    file: Path | None = None
    file_level: str = "INFO"
    stderr_level: str | None = None
    is_short: bool = False
    """Whether stderr is a terminal: then lines are short and wrapped, without logger names."""
    is_coloured: bool = False


class _LoguruHandler(logging.Handler):
    """Forwards records to loguru. Never raises: a failed log write does not fail the turn."""

    def __init__(self, target: LogTarget, clean: Callable[[str], str]) -> None:
        levels = [target.file_level if target.file else None, target.stderr_level]
        super().__init__(min(logging.getLevelNamesMapping()[level] for level in levels if level))
        self._target = target
        self._clean = clean
        self._started = False
        self._warned = False

    def emit(self, record: logging.LogRecord) -> None:
        from loguru import logger  # imported with the first record

        if not self._started:
            self._started = True
            self._open_sinks()
        try:
            level: str | int = logger.level(record.levelname).name
        except ValueError:
            level = record.levelno
        text = strip_error_numbers(record.getMessage())
        if record.exc_info:
            text = f"{text}\n{_TRACEBACK.formatException(record.exc_info)}"
        try:
            logger.bind(source=record.name).log(level, "{}", _escape_control(self._clean(text)))
        except (OSError, ValueError) as error:  # disk full, stream closed
            self._warn(os_reason(error))

    def _open_sinks(self) -> None:
        from loguru import logger

        logger.remove()
        line = "{time:YYYY-MM-DD HH:mm:ss.SSS} {level: <7} {extra[source]} {message}"
        logger.configure(extra={"source": "nanobot"})
        if self._target.stderr_level and sys.stderr is not None:
            stream, target, level = _NonblockingStream(sys.stderr), self._target, self._target.stderr_level
            logger.add(
                (lambda message: stream.write(_short_record(message, target))) if target.is_short else stream,
                level=level,
                format="{message}" if target.is_short else line,
                colorize=False,
                backtrace=False,
                diagnose=False,
                catch=False,
            )
        if self._target.file:
            try:
                self._target.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                logger.add(
                    self._target.file,
                    level=self._target.file_level,
                    format=line,
                    rotation=_ROTATE_BYTES,
                    retention=_RETENTION,
                    opener=lambda path, flags: os.open(path, flags, 0o600),
                    encoding="utf-8",
                    backtrace=False,
                    diagnose=False,
                    catch=False,
                )
            except OSError as error:
                self._warn(os_reason(error))

    def _warn(self, reason: str) -> None:
        """Say once on stderr that logging fails."""
        if not self._warned and sys.stderr is not None:
            self._warned = True
            with suppress(OSError, ValueError):
                print(f"Logging to {self._target.file or 'stderr'} failed: {reason}.", file=sys.stderr)  # noqa: T201


def _short_record(message: "loguru.Message", target: LogTarget) -> str:
    record = message.record
    time, level = f"{record['time']:HH:mm}", record["level"].name
    return short_line(time, level, record["message"], is_coloured=target.is_coloured) + "\n"


def short_line(time: str, level: str, text: str, *, is_coloured: bool) -> str:
    """`18:04 telegram:7 answered in 2.1 s`, wrapped between words to the width of the terminal."""
    colour = _COLOURS.get(level)
    text = f"{level.lower()}: {text}" if colour else text
    columns = max(shutil.get_terminal_size().columns - _INDENT, 20)
    lines = [
        part
        for line in text.split("\n")
        for part in textwrap.wrap(line, columns, break_long_words=False, break_on_hyphens=False) or [""]
    ]
    if is_coloured:
        time = f"\x1b[2m{time}\x1b[0m"
        if colour:
            lines = [f"\x1b[{colour}m{line}\x1b[0m" for line in lines]
        else:
            lines[0] = _SUBJECT.sub("\x1b[36m\\g<0>\x1b[0m", lines[0], count=1)
    return f"{time} " + f"\n{' ' * _INDENT}".join(lines)


def short_lines(lines: Iterable[str], *, is_coloured: bool) -> Iterator[str]:
    """The lines of a log file as the gateway shows them in a terminal, with a heading for each day."""
    day = ""
    for line in lines:
        record = _RECORD.match(line)
        if record is None:  # of a record with several lines
            yield short_line(" " * (_INDENT - 1), "", line.removeprefix("  "), is_coloured=False)
            continue
        if record["day"] != day:
            day = record["day"]
            yield f"\x1b[1m{day}\x1b[0m" if is_coloured else day
        yield short_line(record["time"], record["level"], record["text"], is_coloured=is_coloured)


def _escape_control(text: str) -> str:
    """Escape control characters, which could manipulate a terminal, and indent continuation lines, so that only records
    start at column 0. Records may contain text of strangers and platforms.
    """
    if _CONTROL_CHARS.search(text):
        text = _CONTROL_CHARS.sub(lambda match: repr(match[0])[1:-1], text)
    return text.replace("\n", "\n  ")


class _NonblockingStream:
    """A stream that drops text instead of blocking when its reader (a pager, a stopped terminal) does not read.

    Dropped text is still in the log file.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write as much as the stream accepts. Raises OSError."""
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError, AttributeError):
            descriptor = -1
        if descriptor < 0 or os.name == "nt":  # select is not available
            self._stream.write(text)
            self._stream.flush()
            return
        data = text.encode(errors="backslashreplace")
        for start in range(0, len(data), select.PIPE_BUF):  # a writable pipe accepts PIPE_BUF bytes at once
            if not select.select([], [descriptor], [], 0)[1]:
                return
            os.write(descriptor, data[start : start + select.PIPE_BUF])


def set_up_logging(target: LogTarget, clean: Callable[[str], str] = str) -> None:
    """Send all records of this process to `target`. A further call redirects the log.

    `clean` redacts each record, including its traceback.
    """
    root = logging.getLogger()
    for handler in [*root.handlers]:
        if isinstance(handler, _LoguruHandler):
            root.removeHandler(handler)
    if not (target.file or target.stderr_level):
        return
    handler = _LoguruHandler(target, clean)
    root.addHandler(handler)
    root.setLevel(handler.level)
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(max(handler.level, logging.WARNING))
