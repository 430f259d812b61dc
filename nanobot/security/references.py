"""Secrets that the config does not hold but points at: `file:` names a file of its own, `cmd:` a command that tells it.

A reference stands alone (`"apiKey": "cmd:pass show openai"`) or within a text (`"Bearer ${file:~/.keys/mcp}"`). It is
followed once, when the config is read. Whatever goes wrong is told without a word of what was read.
"""

import os
import re
import stat
from pathlib import Path

from nanobot.errors import SecretUnavailableError

LONGEST = 64 * 1024
"""What is longer is no secret."""
_KINDS = ("file:", "cmd:")
WITHIN = r"(?:file|cmd):[^{}]+"
"""A reference within a text, between `${` and `}`."""
_WITHIN = re.compile(rf"\$\{{({WITHIN})\}}")


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
        from concurrent.futures import ThreadPoolExecutor  # only a config with commands waits for it

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
            data = self._told(target) if kind == "cmd" else _read(target, self._folder)
            return _text(data, "the command" if kind == "cmd" else f"the file {target}")
        except SecretUnavailableError as error:
            return error

    def _told(self, target: str) -> bytes:
        from nanobot.security.secret_commands import (
            told,  # brings child processes; only a config with a command waits for it
        )

        return told(target, self._folder, LONGEST)


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
