"""What a process sees of itself when it begins, as JSON on its output."""

import gc
import json
import locale
import os
import signal
import sys
from pathlib import Path
from typing import Any

import nanobot


def seen() -> dict[str, Any]:
    """All that a fork might have other than a fresh process, but for what is imported already."""
    streams, own = (sys.stdin, sys.stdout, sys.stderr), (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return {
        "arguments": [sys.argv, sys.orig_argv],
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "path": sys.path,
        "home of ours": nanobot.__file__,
        "main": [__name__, sys.modules["__main__"].__dict__["seen"] is seen],
        "streams": [
            (one.encoding, one.errors, one.line_buffering, one.isatty(), one.fileno(), one.closed) for one in streams
        ],
        "same streams": [one is two for one, two in zip(streams, own, strict=True)],
        "files": sorted(file.name for file in Path("/proc/self/fd").iterdir() if file.exists()),
        "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "wakes": signal.set_wakeup_fd(-1),
        "mask": [*map(str, signal.pthread_sigmask(signal.SIG_BLOCK, ()))],
        "umask": os.umask(0o22),
        "group": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()],
        "foreground": os.tcgetpgrp(0) == os.getpgid(0) if os.isatty(0) else None,
        "locale": locale.setlocale(locale.LC_CTYPE),
        "encoding": [
            locale.getpreferredencoding().lower(),
            sys.getfilesystemencoding(),
            sys.getfilesystemencodeerrors(),
        ],
        "flags": [one for one in str(sys.flags).split(", ") if "utf8_mode" not in one],  # it is UTF-8 in either mode
        "gc": [gc.isenabled(), gc.get_threshold()],
    }


if __name__ == "__main__":
    print(json.dumps(seen()))
