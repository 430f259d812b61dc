"""Asking a command for a secret: without a shell, in the folder of the config, nothing on its stdin, for ten seconds.

What goes wrong is told without a word of what the command said.
"""

import os
import re
import shlex
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from nanobot.errors import SecretUnavailableError

TIMEOUT_S = 10.0
"""How long a command may take: a key store may ask its owner for a finger."""
_FOR_A_SHELL = re.compile(r"[|&;<>`]|\$\(")


def told(target: str, folder: Path, most: int) -> bytes:
    """What a command prints, as far as a little beyond `most` bytes. Raises SecretUnavailableError."""
    words = _words(target)
    program = words[0]
    try:
        process = subprocess.Popen(
            words,
            cwd=folder if folder.is_dir() else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it may well hold what must not be told
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SecretUnavailableError(
            f"needs the command {program}, which cannot be started: {reason}. Install it, or correct its name"
        ) from None
    said = _Output(process, most)
    said.start()
    said.join(TIMEOUT_S)
    if said.code is None:
        _end(process)
        raise SecretUnavailableError(
            f"needs the command {program}, which did not end within {TIMEOUT_S:g} s. Run it in a terminal to see what "
            "it waits for"
        )
    if said.code and len(said.data) <= most:
        raise SecretUnavailableError(
            f"needs the command {program}, which ended with code {said.code}. Run it in a terminal to see why"
        )
    return said.data


class _Output(threading.Thread):
    """Hears a command to its end. A thread, since not every host can wait for a pipe with a deadline."""

    def __init__(self, process: subprocess.Popen[bytes], most: int) -> None:
        super().__init__(name="secret", daemon=True)
        self._process = process
        self._most = most
        self.data = b""
        self.code: int | None = None

    def run(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None  # noqa: S101 it was asked for
        with pipe:
            self.data = pipe.read(self._most + 1)
            if len(self.data) > self._most:
                _end(self._process)
        self.code = self._process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it has started."""
    with suppress(OSError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _words(target: str) -> list[str]:
    try:
        words = shlex.split(target, posix=os.name != "nt")
        plain = [word for word in shlex.split(target, posix=False) if word[0] not in "'\""]
    except ValueError as error:
        raise SecretUnavailableError(f"holds a command that cannot be read: {error}. Correct its quotes") from None
    if not words:
        raise SecretUnavailableError("holds no command behind cmd:. Write one, such as cmd:pass show nanobot")
    if any(map(_FOR_A_SHELL.search, plain)):
        raise SecretUnavailableError(
            "holds a command for a shell, and it is run without one. Write cmd:sh -c '...', or put it into a script"
        )
    return [os.path.expanduser(word) if word.startswith("~") else word for word in words]  # noqa: PTH111 part of a word
