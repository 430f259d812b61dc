"""What of the wall holds on this machine, found out by doing it once: containers and kernels forbid this and that.

An answer that a wall stands is kept in a file with what it depends on, so that the next start need not ask. That there
is none is asked again by every start: somebody may have installed it since.
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

_PATIENCE_S = 10.0
_WORDS = ("own_proc", "no_more_userns")
INSTALL = "Install bubblewrap (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"


@dataclass(frozen=True, slots=True)
class Found:
    """What a probe found: how bwrap works here, or why it does not."""

    bwrap: Bwrap | None
    problem: str = ""
    hardened: bool = False
    """Whether the thread that starts it may give up what a view does not close."""


def probe(look: Callable[[], View], cache: Path | None = None, *, keep: bool = True) -> Found:
    """Find out with the view of a command, or remember; `keep` what was found. Blocking; never raises."""
    program = shutil.which("bwrap")
    if program is None:
        where = "Commands are walled off on Linux only" if platform.system() != "Linux" else INSTALL
        return Found(None, f"bwrap is not installed. {where}.")
    valid_for = _depends_on(program)
    kept = _kept(cache, valid_for)
    if kept is not None:
        return Found(Bwrap(program, **{word: kept[word] for word in _WORDS}), hardened=kept["hardened"])
    view, problem = look(), ""
    for way in _ways(program):
        for hardened in (True, False):
            failure = _failure(way, view, hardened=hardened)
            if failure is None:
                if keep:
                    _keep(cache, valid_for, way, hardened=hardened)
                return Found(way, hardened=hardened)
            problem = problem or failure
    return Found(None, f"bwrap is installed, but does not work here: {problem}")


def _ways(program: str) -> Iterator[Bwrap]:
    """The strongest first."""
    for own_proc in (True, False):
        for no_more_userns in (True, False):
            yield Bwrap(program, own_proc=own_proc, no_more_userns=no_more_userns)


def _failure(way: Bwrap, view: View, *, hardened: bool) -> str | None:
    """Why `true` cannot be run this way; None where it can."""
    with ThreadPoolExecutor(1, initializer=harden_thread if hardened else None) as threads:
        try:
            return threads.submit(_ran_without, way, view).result()
        except (BrokenExecutor, OSError) as error:
            return f"the kernel does not let a thread give up rights ({error})"


def _ran_without(way: Bwrap, view: View) -> str | None:
    true = shutil.which("true") or "/bin/true"
    try:
        ran = subprocess.run(
            way.argv(view, Path("/"), [true]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_PATIENCE_S,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {_PATIENCE_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return None if ran.returncode == 0 else ran.stderr.decode(errors="replace").strip()[-300:] or "it failed"


def _depends_on(program: str) -> dict[str, Any]:
    about = Path(program).stat()
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    return {"program": program, "of": [about.st_mtime_ns, about.st_size], "kernel": platform.release(), "user": user}


def _kept(cache: Path | None, valid_for: dict[str, Any]) -> dict[str, bool] | None:
    if cache is None:
        return None
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(cache.read_text(encoding="utf-8"))
        if found["valid_for"] == valid_for:
            return {word: bool(found[word]) for word in (*_WORDS, "hardened")}
    return None


def _keep(cache: Path | None, valid_for: dict[str, Any], way: Bwrap, *, hardened: bool) -> None:
    if cache is not None:
        kept = {"valid_for": valid_for, "hardened": hardened, **{word: getattr(way, word) for word in _WORDS}}
        with suppress(OSError):  # then the next start asks again
            write_atomic(cache, json.dumps(kept, indent=2) + "\n", mode=0o600)
