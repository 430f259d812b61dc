"""How a package that an optional part needs gets installed."""

import os
import shlex
import sys


def install_command(extra: str) -> str:
    """The command to type, with the interpreter that has to get it: the first pip on the PATH may be another's."""
    python = shlex.quote(sys.executable) if os.name == "posix" else f'"{sys.executable}"'
    return f"{python} -m pip install 'nanobot[{extra}]'"
