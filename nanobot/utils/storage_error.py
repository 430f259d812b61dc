"""Turns OSErrors into messages: what failed, why, and what to do about it."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from nanobot.errors import StorageError

_ELSEWHERE = "choose another workspace with --workspace, another data folder with --config"
_ADVICE = {
    "ENOSPC": "Free some disk space and try again.",
    "EDQUOT": "Your quota is used up: free some space and try again.",
    "EROFS": f"Make it writable, or {_ELSEWHERE}.",
    "EACCES": f"Check who owns it, or {_ELSEWHERE}.",
    "EPERM": f"Check who owns it, or {_ELSEWHERE}.",
    "EISDIR": "There is a folder where a file should be: move it away.",
    "ENOTDIR": "There is a file where a folder should be: move it away.",
    "ELOOP": "nanobot follows no links to its own files: replace the link by a real file or folder.",
    "EEXIST": "There is a file where a folder should be: move it away.",
}


_REASONS = {
    "ECONNREFUSED": "nothing answers there",
    "ECONNRESET": "the connection was closed by the other side",
    "ENETUNREACH": "there is no network",
}
_ADDRESS = re.compile("Connect call failed|while attempting to bind on address")
"""What Python says before or after the address of a socket."""
_NUMBER = re.compile(r"\[(?:Errno|WinError) (-?\d+)\] ")


def os_reason(error: BaseException) -> str:
    """Why it failed, as part of a sentence for a person: without the number and the addresses of an OSError."""
    import ssl  # slow, for errors only

    text = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return text.partition(" (_ssl.c")[0]
    if not isinstance(error, OSError):
        return text
    number, words = error.errno, error.strerror or text
    if words.startswith("Multiple exceptions: ") and (first := _NUMBER.search(words)):  # asyncio, of several addresses
        number, words = int(first[1]), "Connect call failed"
    if number and (reason := _REASONS.get(errno.errorcode.get(number, ""))):
        return reason
    return os.strerror(number) if number and _ADDRESS.search(words) else strip_error_numbers(words)


def strip_error_numbers(text: str) -> str:
    """The text without `[Errno 2]`, which Python puts before the reason of an OSError."""
    return _NUMBER.sub("", text)


def error_text(error: BaseException) -> str:
    """An error as a person reads it: by its text, an OSError by its file and reason."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{os.fsdecode(error.filename)}: {error.strerror}."
    return os_reason(error)


def storage_error(what: str, error: OSError) -> StorageError:
    """A StorageError for an OSError."""
    advice = _ADVICE.get(errno.errorcode.get(error.errno or 0, ""), "Check the disk and try again.")
    location = f" ({error.filename})" if error.filename and str(error.filename) not in what else ""
    return StorageError(f"{what}: {error.strerror or error}{location}. {advice}")


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn an OSError that is raised inside into a StorageError."""
    try:
        yield
    except OSError as error:
        raise storage_error(what, error) from error
