"""Secrets that the config does not hold but points at: `file:` names a file of its own, `cmd:` a command that tells it.

A reference stands alone (`"apiKey": "cmd:pass show openai"`) or within a text (`"Bearer ${file:~/.keys/mcp}"`). It is
followed once, when the config is read. Whatever goes wrong is told without a word of what was read.
"""

import os
import re
import shlex
import signal
import stat
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from nanobot.errors import NanobotError

TIMEOUT_S = 10.0
"""How long a command may take: a key store may ask its owner for a finger."""
LONGEST = 64 * 1024
"""What is longer is no secret."""
_KINDS = ("file:", "cmd:")
WITHIN = r"(?:file|cmd):[^{}]+"
"""A reference within a text, between `${` and `}`."""
_WITHIN = re.compile(rf"\$\{{({WITHIN})\}}")
_FOR_A_SHELL = re.compile(r"[|&;<>`]|\$\(")


class SecretUnavailableError(NanobotError):
    """A reference leads to no secret. The text follows the name of its key: what it needs, and what to do."""


def is_reference(text: str) -> bool:
    """Whether the whole text points at a secret."""
    return text.startswith(_KINDS)


def references_in(text: str, *, whole: bool) -> list[str]:
    """The references within a text, or the text itself where it is one as a whole."""
    return [text] if whole else _WITHIN.findall(text)


class References:
    """The references of one config, each followed once. Relative files are looked for beside the config."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, str | SecretUnavailableError] = {}

    def follow(self, references: set[str]) -> None:
        """Follow these side by side, so that many commands take as long as the slowest. Raises nothing."""
        if len(references) < 2:
            return  # one is followed where it is asked for
        with ThreadPoolExecutor(min(len(references), 8), "secrets") as pool:
            self._found.update(zip(references, pool.map(self._outcome, references), strict=True))

    def secret(self, reference: str) -> str:
        """What it leads to. Raises SecretUnavailableError."""
        if reference not in self._found:
            self._found[reference] = self._outcome(reference)
        found = self._found[reference]
        if isinstance(found, SecretUnavailableError):
            raise found
        return found

    def file_of(self, reference: str) -> Path:
        """The file that a `file:` reference names. Raises RuntimeError where the host knows no such home."""
        return _place(reference.partition(":")[2], self._folder)

    def _outcome(self, reference: str) -> str | SecretUnavailableError:
        kind, _, target = reference.partition(":")
        try:
            data = _told(target, self._folder) if kind == "cmd" else _read(target, self._folder)
            return _text(data, "the command" if kind == "cmd" else f"the file {target}")
        except SecretUnavailableError as error:
            return error


def _text(data: bytes, source: str) -> str:
    if len(data) > LONGEST:
        raise SecretUnavailableError(f"needs one secret, and {source} gives more than {LONGEST // 1024} kB. Correct it")
    try:
        text = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SecretUnavailableError(f"needs a text, and {source} gives something else. Correct it") from None
    if not text.strip():
        raise SecretUnavailableError(f"needs a secret, and {source} gives none. Put one there")
    return text


def _place(target: str, folder: Path) -> Path:
    return folder / Path(target.strip().removeprefix("//")).expanduser()


def _read(target: str, folder: Path) -> bytes:
    """The bytes of a file; never waits for a pipe."""
    name = target.strip().removeprefix("//")
    try:
        path = _place(target, folder)
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SecretUnavailableError(f"needs a plain file, and {name} is none. Name the file with the secret")
            return file.read(LONGEST + 1)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SecretUnavailableError(
            f"needs the file {name}, which cannot be read: {reason}. Correct the path or its permissions"
        ) from None


def _told(target: str, folder: Path) -> bytes:
    """What a command prints. It runs without a shell, in the folder of the config, with nothing on its stdin."""
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
    said = _Output(process)
    said.start()
    said.join(TIMEOUT_S)
    if said.code is None:
        _end(process)
        raise SecretUnavailableError(
            f"needs the command {program}, which did not end within {TIMEOUT_S:g} s. Run it in a terminal to see what "
            "it waits for"
        )
    if said.code and len(said.data) <= LONGEST:
        raise SecretUnavailableError(
            f"needs the command {program}, which ended with code {said.code}. Run it in a terminal to see why"
        )
    return said.data


class _Output(threading.Thread):
    """Hears a command to its end. A thread, since not every host can wait for a pipe with a deadline."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(name="secret", daemon=True)
        self._process = process
        self.data = b""
        self.code: int | None = None

    def run(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None  # noqa: S101 it was asked for
        with pipe:
            self.data = pipe.read(LONGEST + 1)
            if len(self.data) > LONGEST:
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
