"""Find out by a trial run which parts of the sandbox work on this machine: containers and kernels differ.

A working configuration is cached in a file with what it depends on. A failure is not cached: bubblewrap may have been
installed since.
"""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobot.security.sandbox.bwrap import Bwrap
from nanobot.security.sandbox.landlock import harden_thread
from nanobot.security.sandbox.view import View
from nanobot.utils.files import write_atomic
from nanobot.utils.storage_error import os_reason

_TIMEOUT_S = 10.0
_OPTIONS = ("own_proc", "no_more_userns")
INSTALL = "Install bubblewrap (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"


@dataclass(frozen=True, slots=True)
class SandboxSupport:
    """How bwrap works here, or why it does not."""

    bwrap: Bwrap | None
    problem: str = ""
    hardened: bool = False
    """Whether threads may install the filters of `harden_thread` here."""


def probe_sandbox(make_view: Callable[[], View], cache: Path | None = None, *, keep: bool = True) -> SandboxSupport:
    """Try bwrap with this view, or read the cached result; `keep` writes the cache. Blocking; never raises."""
    program = shutil.which("bwrap")
    if program is None:
        advice = "Commands are sandboxed on Linux only" if platform.system() != "Linux" else INSTALL
        return SandboxSupport(None, f"bwrap is not installed. {advice}.")
    valid_for = _depends_on(program)
    cached = _read_cache(cache, valid_for)
    if cached is not None:
        options = {option: cached[option] for option in _OPTIONS}
        return SandboxSupport(Bwrap(program, **options), hardened=cached["hardened"])
    view, problem = make_view(), ""
    for bwrap in _candidates(program):
        for hardened in (True, False):
            failure = _try_hardened(bwrap, view, hardened=hardened)
            if failure is None:
                if keep:
                    _write_cache(cache, valid_for, bwrap, hardened=hardened)
                return SandboxSupport(bwrap, hardened=hardened)
            problem = problem or failure
    return SandboxSupport(None, f"bwrap is installed, but does not work here: {problem}")


def _candidates(program: str) -> Iterator[Bwrap]:
    """The strongest first."""
    for own_proc in (True, False):
        for no_more_userns in (True, False):
            yield Bwrap(program, own_proc=own_proc, no_more_userns=no_more_userns)


def _try_hardened(bwrap: Bwrap, view: View, *, hardened: bool) -> str | None:
    """Why `true` cannot run like this; None if it can."""
    with ThreadPoolExecutor(1, initializer=harden_thread if hardened else None) as threads:
        try:
            return threads.submit(_try, bwrap, view).result()
        except (BrokenExecutor, OSError) as error:
            return f"the kernel does not let a thread give up rights ({os_reason(error)})"


def _try(bwrap: Bwrap, view: View) -> str | None:
    true = shutil.which("true") or "/bin/true"
    try:
        process = subprocess.run(
            bwrap.argv(view, Path("/"), [true]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {_TIMEOUT_S:g} s"
    except OSError as error:
        return os_reason(error)
    if process.returncode == 0:
        return None
    return process.stderr.decode(errors="replace").strip()[-300:] or "it failed"


def _depends_on(program: str) -> dict[str, Any]:
    status = Path(program).stat()
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    return {"program": program, "of": [status.st_mtime_ns, status.st_size], "kernel": platform.release(), "user": user}


def _read_cache(cache: Path | None, valid_for: dict[str, Any]) -> dict[str, bool] | None:
    if cache is None:
        return None
    with suppress(OSError, ValueError, TypeError, KeyError):
        payload = json.loads(cache.read_text(encoding="utf-8"))
        if payload["valid_for"] == valid_for:
            return {name: bool(payload[name]) for name in (*_OPTIONS, "hardened")}
    return None


def _write_cache(cache: Path | None, valid_for: dict[str, Any], bwrap: Bwrap, *, hardened: bool) -> None:
    if cache is not None:
        options = {option: getattr(bwrap, option) for option in _OPTIONS}
        payload = {"valid_for": valid_for, "hardened": hardened, **options}
        with suppress(OSError):  # without a cache the next start probes again
            write_atomic(cache, json.dumps(payload, indent=2) + "\n", mode=0o600)
