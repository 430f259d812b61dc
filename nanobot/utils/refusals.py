"""The disk's no, as a person reads it: what could not be done, why, and what to do about it."""

import errno

from nanobot.errors import StorageError

_ADVICE = {
    "ENOSPC": "Free some space and try again.",
    "EDQUOT": "Your quota is used up: free some space and try again.",
    "EROFS": "Choose another workspace with --workspace.",
    "EACCES": "Check who owns the folder, or choose another workspace with --workspace.",
    "EPERM": "Check who owns the folder, or choose another workspace with --workspace.",
    "EISDIR": "A folder is where a file should be: move it away.",
    "ENOTDIR": "A file is where a folder should be: move it away.",
    "EEXIST": "A file is where a folder should be: move it away.",
}


def refusal(what: str, error: OSError) -> StorageError:
    """The error of the system as one of ours."""
    advice = _ADVICE.get(errno.errorcode.get(error.errno or 0, ""), "Check the disk and try again.")
    where = f" ({error.filename})" if error.filename and str(error.filename) not in what else ""
    return StorageError(f"{what}: {error.strerror or error}{where}. {advice}")
