"""Where output goes, as long as it goes: the reader of a pipe may leave, a disk may be full. Writing never raises."""

import errno
import os
from typing import TextIO

from nanobot.cli.terminal import say


class Outlet:
    """A stream to write to. None (a process may be started without one) takes everything and shows nothing."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.closed = False
        self.problem = ""
        """Why nothing more can be written; empty while it can, and where the reader just left."""

    def write(self, text: str) -> None:
        """Write and flush."""
        if self.closed or self._stream is None:
            return
        try:
            say(self._stream, text)
        except BrokenPipeError:
            self._close()
        except OSError as error:
            if not (os.name == "nt" and error.errno == errno.EINVAL):  # Windows' word for a broken pipe
                self.problem = f"the output could not be written: {error.strerror}"
            self._close()

    def _close(self) -> None:
        """Let the flush at exit go nowhere instead of failing."""
        self.closed = True
        sink = os.open(os.devnull, os.O_WRONLY)
        try:
            if self._stream is not None:
                os.dup2(sink, self._stream.fileno())
        except (OSError, ValueError):
            pass  # no file behind it: nothing will be flushed
        finally:
            os.close(sink)
