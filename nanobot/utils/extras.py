"""How to install an optional part."""

import os
import shlex
import sys


def install_command(extra: str) -> str:
    """The install command for the running interpreter; the first pip on the PATH may belong to another one."""
    python = shlex.quote(sys.executable) if os.name == "posix" else f'"{sys.executable}"'
    return f"{python} -m pip install 'nanobot[{extra}]'"
