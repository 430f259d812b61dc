"""How figures are taken: whole processes by the system's own accounting, medians of several runs."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """One process: when it started and ended (time.time()), its CPU seconds and its peak memory in MB."""

    started: float
    ended: float
    cpu_s: float
    peak_mb: float
    output: str

    @property
    def wall_s(self) -> float:
        return self.ended - self.started


_LAUNCH = """
import json, os, subprocess, sys, time
started = time.time()
process = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
ended = time.time()
figures = [os.waitstatus_to_exitcode(status), started, ended, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]
with open(sys.argv[1], "w") as file:
    json.dump(figures, file)
"""
"""A small parent: a process inherits the peak memory of the one that starts it, and pytest is large."""


def run_once(command: Sequence[str], environ: Mapping[str, str], cwd: Path) -> Run:
    with tempfile.NamedTemporaryFile() as figures:
        launch = [sys.executable, "-S", "-E", "-c", _LAUNCH, figures.name, *command]
        done = subprocess.run(launch, env=dict(environ), cwd=cwd, capture_output=True, check=False)
        code, started, ended, cpu_s, peak_mb = json.loads(Path(figures.name).read_bytes())
    output = (done.stdout + done.stderr).decode(errors="replace")
    assert code == 0, output
    return Run(started, ended, cpu_s, peak_mb, output)


def runs(command: Sequence[str], environ: Mapping[str, str], cwd: Path, times: int = 7) -> list[Run]:
    run_once(command, environ, cwd)  # the first one fills caches
    return [run_once(command, environ, cwd) for _ in range(times)]


def median(of: Sequence[Run], figure: Callable[[Run], float]) -> float:
    return statistics.median(map(figure, of))


def clean_environ(home: Path, **more: str) -> dict[str, str]:
    """An empty home, no keys, byte code written as on a person's machine."""
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "SYSTEMROOT") if name in os.environ}
    return {**keep, "HOME": str(home), "USERPROFILE": str(home), **more}


def nanobot(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nanobot", *arguments]


class Table:
    """Rows of figures beside their floors."""

    def __init__(self, title: str) -> None:
        self._lines = [f"\n{title}"]

    def row(self, name: str, figure: float, unit: str, floor: float | None = None, of: str = "", aim: str = "") -> None:
        ratio = f"{figure / floor:6.2f} x {of}" if floor else ""
        digits = 4 if figure < 0.1 else 3 if figure < 10 else 1
        self._lines.append(f"  {name:<58} {figure:>10.{digits}f} {unit:<6} {ratio:<34} {'aim ' + aim if aim else ''}")

    def show(self) -> None:
        print("\n".join(self._lines), flush=True)
