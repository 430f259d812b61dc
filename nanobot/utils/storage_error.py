"""Turns OSErrors into messages: what failed, why, and what to do about it."""

import errno

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


def storage_error(what: str, error: OSError) -> StorageError:
    """A StorageError for an OSError."""
    advice = _ADVICE.get(errno.errorcode.get(error.errno or 0, ""), "Check the disk and try again.")
    location = f" ({error.filename})" if error.filename and str(error.filename) not in what else ""
    return StorageError(f"{what}: {error.strerror or error}{location}. {advice}")
