"""Why a system call failed, as a person reads it."""

import errno
import socket
import ssl

import pytest

from nanobot.utils.storage_error import error_text, os_reason

_CONNECT = "Connect call failed ('127.0.0.1', 9)"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ECONNREFUSED, _CONNECT), "nothing answers there"),
        (OSError(f"Multiple exceptions: [Errno {errno.ECONNREFUSED}] {_CONNECT}, ..."), "nothing answers there"),
        (OSError(errno.ECONNRESET, "Connection reset by peer"), "the connection was closed by the other side"),
        (
            OSError(errno.EACCES, "Permission denied (while attempting to bind on address ('::1', 80))"),
            "Permission denied",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (
            ConnectionError("mail.example cannot be reached ([Errno 111] refused)"),
            "mail.example cannot be reached (refused)",
        ),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (
            ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1016)"),
            "[SSL: WRONG_VERSION_NUMBER] wrong version number",
        ),
        (TimeoutError(), "TimeoutError"),
        (ValueError("no such thing"), "no such thing"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_reason_has_no_number_and_no_address(error: Exception, reason: str):
    assert os_reason(error) == reason


def test_an_unreadable_file_is_named_with_the_reason():
    assert error_text(FileNotFoundError(errno.ENOENT, "No such file or directory", "notes.md")) == (
        "notes.md: No such file or directory."
    )
