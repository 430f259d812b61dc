"""Running a command that prints a secret: without a shell, in the config's folder, with empty stdin and a timeout.

Errors never contain the command's output.
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
"""A key store may ask its owner for a fingerprint."""
_SHELL_SYNTAX = re.compile(r"[|&;<>`]|\$\(")


def run_secret_command(target: str, folder: Path, limit: int) -> bytes:
    """Return what a command prints, at most `limit` + 1 bytes. Raises SecretUnavailableError."""
    words = _parse(target)
    program = words[0]
    try:
        process = subprocess.Popen(
            words,
            cwd=folder if folder.is_dir() else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # may contain the secret
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SecretUnavailableError(
            f"needs the command {program}, which cannot be started: {reason}. Install it, or correct its name"
        ) from None
    output = _Output(process, limit)
    output.start()
    output.join(TIMEOUT_S)
    if output.code is None:
        _kill(process)
        raise SecretUnavailableError(
            f"needs the command {program}, which did not end within {TIMEOUT_S:g} s. Run it in a terminal to see what "
            "it waits for"
        )
    if output.code and len(output.data) <= limit:
        raise SecretUnavailableError(
            f"needs the command {program}, which ended with code {output.code}. Run it in a terminal to see why"
        )
    return output.data


class _Output(threading.Thread):
    """Reads a command's output. A thread, since not every host can wait for a pipe with a timeout."""

    def __init__(self, process: subprocess.Popen[bytes], limit: int) -> None:
        super().__init__(name="secret", daemon=True)
        self._process = process
        self._limit = limit
        self.data = b""
        self.code: int | None = None

    def run(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None  # noqa: S101 stdout=PIPE
        with pipe:
            self.data = pipe.read(self._limit + 1)
            if len(self.data) > self._limit:
                _kill(self._process)
        self.code = self._process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and its children."""
    with suppress(OSError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _parse(target: str) -> list[str]:
    try:
        words = shlex.split(target, posix=os.name != "nt")
        unquoted = [word for word in shlex.split(target, posix=False) if word[0] not in "'\""]
    except ValueError as error:
        raise SecretUnavailableError(f"contains a command that cannot be parsed: {error}. Correct its quotes") from None
    if not words:
        raise SecretUnavailableError("has no command after cmd:. Write one, such as cmd:pass show nanobot")
    if any(map(_SHELL_SYNTAX.search, unquoted)):
        raise SecretUnavailableError(
            "contains shell syntax, and the command runs without a shell. Write cmd:sh -c '...', or use a script"
        )
    return [os.path.expanduser(word) if word.startswith("~") else word for word in words]  # noqa: PTH111 part of a word
