"""How to install an optional part."""

import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec


def install_command(extra: str) -> str:
    """The install command for the running interpreter; the first pip on the PATH may belong to another one."""
    *program, requirement = install_arguments(extra)
    return f"{shlex.join(program) if os.name == 'posix' else subprocess.list2cmdline(program)} '{requirement}'"


def install_arguments(extra: str) -> list[str]:
    """The same as arguments: with pip, or with uv where an environment has no pip."""
    uv = None if find_spec("pip") else shutil.which("uv")
    installer = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    return [*installer, f"nanobot[{extra}]"]
