"""Secrets outside of the config: `file:` refers to a file, `cmd:` to a command that prints the secret.

A reference is a whole value (`"apiKey": "cmd:pass show openai"`) or part of a text (`"Bearer ${file:~/.keys/mcp}"`). It
is resolved once, when the config is loaded. Errors never contain what was read.
"""

import os
import re
import stat
from pathlib import Path

from nanobot.errors import SecretUnavailableError

LONGEST = 64 * 1024
"""Bytes; anything longer is not a secret."""
_KINDS = ("file:", "cmd:")
WITHIN = r"(?:file|cmd):[^{}]+"
"""A reference inside a text, between `${` and `}`."""
_WITHIN = re.compile(rf"\$\{{({WITHIN})\}}")


def is_reference(text: str) -> bool:
    """Whether the whole text is a reference."""
    return text.startswith(_KINDS)


def references_in(text: str, *, whole: bool) -> list[str]:
    """The references inside a text, or the text itself if it is one (`whole`)."""
    return [text] if whole else _WITHIN.findall(text)


class References:
    """The references of one config, each resolved once. Relative paths start in the config's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._resolved: dict[str, str | SecretUnavailableError] = {}

    def follow(self, references: set[str]) -> None:
        """Resolve these in parallel, so that many commands take as long as the slowest. Never raises."""
        if len(references) < 2:
            return  # `secret` resolves a single one
        from concurrent.futures import ThreadPoolExecutor  # imported late: only configs with several references need it

        with ThreadPoolExecutor(min(len(references), 8), "secrets") as pool:
            self._resolved.update(zip(references, pool.map(self._resolve, references), strict=True))

    def secret(self, reference: str) -> str:
        """The secret itself. Raises SecretUnavailableError."""
        if reference not in self._resolved:
            self._resolved[reference] = self._resolve(reference)
        secret = self._resolved[reference]
        if isinstance(secret, SecretUnavailableError):
            raise secret
        return secret

    def file_of(self, reference: str) -> Path:
        """The file that a `file:` reference names. Raises RuntimeError for an unknown `~user`."""
        return _resolve_path(reference.partition(":")[2], self._folder)

    def _resolve(self, reference: str) -> str | SecretUnavailableError:
        kind, _, target = reference.partition(":")
        try:
            data = self._run(target) if kind == "cmd" else _read(target, self._folder)
            return _text(data, "the command" if kind == "cmd" else f"the file {target}")
        except SecretUnavailableError as error:
            return error

    def _run(self, target: str) -> bytes:
        from nanobot.security.secret_commands import run_secret_command  # imported late: rarely needed

        return run_secret_command(target, self._folder, LONGEST)


def _text(data: bytes, source: str) -> str:
    if len(data) > LONGEST:
        raise SecretUnavailableError(
            f"needs one secret, and {source} returns more than {LONGEST // 1024} kB. Correct it"
        )
    try:
        text = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SecretUnavailableError(f"needs a text, and {source} returns something else. Correct it") from None
    if not text.strip():
        raise SecretUnavailableError(f"needs a secret, and {source} returns none. Put one there")
    return text


def _resolve_path(target: str, folder: Path) -> Path:
    return folder / Path(target.strip().removeprefix("//")).expanduser()


def _read(target: str, folder: Path) -> bytes:
    """Read a file without waiting for a pipe."""
    name = target.strip().removeprefix("//")
    try:
        path = _resolve_path(target, folder)
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SecretUnavailableError(
                    f"needs a plain file, and {name} is not one. Name the file with the secret"
                )
            return file.read(LONGEST + 1)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SecretUnavailableError(
            f"needs the file {name}, which cannot be read: {reason}. Correct the path or its permissions"
        ) from None
