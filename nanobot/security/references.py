"""Secrets outside of the config: `file:` refers to a file, `cmd:` to a command that prints the secret.

A reference is a whole value (`"apiKey": "cmd:pass show openai"`) or part of a text (`"Bearer ${file:~/.keys/mcp}"`). It
is resolved once, when the config is loaded. Commands run without a shell, in the config's folder, with empty stdin and
a timeout. Errors never contain what was read.
"""

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from nanobot.errors import SecretUnavailableError

LONGEST = 64 * 1024
"""Bytes; anything longer is not a secret."""
TIMEOUT_S = 10.0
"""A key store may ask its owner for a fingerprint."""
WITHIN = r"(?:file|cmd):[^{}]+"
"""A reference inside a text, between `${` and `}`."""
_WITHIN = re.compile(rf"\$\{{({WITHIN})\}}")
_SHELL_SYNTAX = re.compile(r"[|&;<>`]|\$\(")


def is_reference(text: str) -> bool:
    """Whether the whole text is a reference."""
    return text.startswith(("file:", "cmd:"))


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
        return self._folder / Path(_file_name(reference)).expanduser()

    def _resolve(self, reference: str) -> str | SecretUnavailableError:
        is_command = reference.startswith("cmd:")
        source = "the command" if is_command else f"the file {reference.removeprefix('file:')}"
        try:
            data = _run(reference.removeprefix("cmd:"), self._folder) if is_command else self._read(reference)
            if len(data) > LONGEST:
                return _unavailable(f"one secret, and {source} returns more than {LONGEST // 1024} kB. Correct it")
            text = data.decode().removesuffix("\n").removesuffix("\r")
        except SecretUnavailableError as error:
            return error
        except UnicodeDecodeError:
            return _unavailable(f"a text, and {source} returns something else. Correct it")
        return text if text.strip() else _unavailable(f"a secret, and {source} returns none. Put one there")

    def _read(self, reference: str) -> bytes:
        """Read a file without waiting for a pipe."""
        name = _file_name(reference)
        try:
            path = self.file_of(reference)
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise _unavailable(f"a plain file, and {name} is not one. Name the file with the secret")
                return file.read(LONGEST + 1)
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            problem = f"the file {name}, which cannot be read: {reason}. Correct the path or its permissions"
            raise _unavailable(problem) from None


def _file_name(reference: str) -> str:
    return reference.partition(":")[2].strip().removeprefix("//")


def _unavailable(problem: str) -> SecretUnavailableError:
    return SecretUnavailableError(f"needs {problem}")


def _run(target: str, folder: Path) -> bytes:
    """Return what a command prints, at most LONGEST + 1 bytes. Raises SecretUnavailableError."""
    import signal  # these are imported late: rarely needed
    import subprocess
    import threading

    words = _parse(target)
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
        problem = f"the command {words[0]}, which cannot be started: {reason}. Install it, or correct its name"
        raise _unavailable(problem) from None
    data = b""

    def kill() -> None:
        """Kill the command and its children."""
        with suppress(OSError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL) if os.name == "posix" else process.kill()

    def read() -> None:
        nonlocal data
        assert process.stdout is not None  # noqa: S101 stdout=PIPE
        with process.stdout:
            data = process.stdout.read(LONGEST + 1)
        if len(data) > LONGEST:
            kill()
        process.wait()

    reader = threading.Thread(target=read, name="secret", daemon=True)  # no pipe of Windows can be read with a timeout
    reader.start()
    reader.join(TIMEOUT_S)
    if reader.is_alive():
        kill()
        problem = f"did not end within {TIMEOUT_S:g} s. Run it in a terminal to see what it waits for"
    elif process.returncode and len(data) <= LONGEST:
        problem = f"ended with code {process.returncode}. Run it in a terminal to see why"
    else:
        return data
    raise _unavailable(f"the command {words[0]}, which {problem}")


def _parse(target: str) -> list[str]:
    import shlex

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
