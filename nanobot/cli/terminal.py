"""Terminals: what a stream can show, text made safe for it, colours, and writing that never raises."""

import errno
import os
import re
from collections.abc import Callable
from typing import TextIO

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNESCAPED_BY_JSON = re.compile("[\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def repair_output(text: str) -> str:
    """Replace lone surrogates, which undecodable argv bytes become, so that the text can be encoded."""
    surrogates = _SURROGATE.findall(text)
    if not surrogates:
        return text
    are_bytes = all("\udc80" <= surrogate <= "\udcff" for surrogate in surrogates)
    return text.encode("utf-8", "surrogateescape" if are_bytes else "replace").decode("utf-8", "replace")


def strip_control(text: str) -> str:
    """Remove control sequences: text of a model or tool must not move the cursor or set a title."""
    return _CONTROL.sub("", repair_output(text).replace("\r\n", "\n").replace("\r", "\n"))


def escape_control(text: str) -> str:
    """Escape in a JSON text the control characters that JSON allows unescaped (DEL, C1)."""
    return _UNESCAPED_BY_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", repair_output(text))


def write_text(stream: TextIO, text: str) -> None:
    """Write and flush. Raises OSError where the reader is gone."""
    stream.write(text)
    stream.flush()


def is_terminal(stream: TextIO | None) -> bool:
    """Whether this stream is a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def wants_colour(stream: TextIO | None) -> bool:
    """Whether to use colours: on a terminal that is not dumb, unless NO_COLOR is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def can_redraw(stream: TextIO | None) -> bool:
    """Whether the terminal can redraw lines that were written."""
    term = os.environ.get("TERM") or ("" if os.name == "nt" else "unknown")
    return is_terminal(stream) and term not in ("dumb", "unknown")


def _sgr(code: str) -> "Callable[[Paint, str], str]":
    return lambda paint, text: f"\x1b[{code}m{text}\x1b[0m" if paint.colour and text else text


class Paint:
    """Wrap text in SGR colour sequences, or return it unchanged where `colour` is off."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    dim = _sgr("2")  # everything beside the answer
    bold = _sgr("1")  # what a person typed, headings
    red = _sgr("31")  # failures
    yellow = _sgr("33")  # warnings
    green = _sgr("32")  # added lines


class SafeStream:
    """A stream whose writes never raise: the reader of a pipe may leave, the disk may be full.

    `stream` is None in a process without that stream; then writes are dropped.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.closed = False
        self.problem = ""
        """Why writing failed; empty while it works, and where the reader merely closed the pipe."""

    def write(self, text: str) -> None:
        """Write and flush."""
        if self.closed or self._stream is None:
            return
        try:
            write_text(self._stream, text)
        except BrokenPipeError:
            self._close()
        except OSError as error:
            if not (os.name == "nt" and error.errno == errno.EINVAL):  # a broken pipe on Windows
                self.problem = f"the output could not be written: {error.strerror}"
            self._close()

    def _close(self) -> None:
        """Redirect the stream to the null device, so that the flush at exit does not fail."""
        self.closed = True
        sink = os.open(os.devnull, os.O_WRONLY)
        try:
            if self._stream is not None:
                os.dup2(sink, self._stream.fileno())
        except (OSError, ValueError):
            pass  # no file descriptor, so nothing to flush
        finally:
            os.close(sink)
