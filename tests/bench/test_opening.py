"""What the walls around a file cost: a checked open against a plain one."""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathPolicy, key_places
from tests.bench.measure import Table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]


def microseconds(work: Callable[[], object], times: int = 2_000) -> float:
    """The middle of many, each taken by itself, with a pause now and then as between calls of a model."""
    taken = []
    for number in range(times):
        if number % 50 == 0:
            time.sleep(0.06)
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def test_a_checked_open_against_a_plain_one(tmp_path: Path):
    data = tmp_path / ".nanobot"
    workspace = data / "workspace"
    file = workspace / "src" / "package" / "module.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\n", encoding="utf-8")
    os.link(file, twice := file.with_name("twice.py"))
    unreadable = (data / "config.json", data / "state", *key_places(Path.home()))
    policy = PathPolicy(workspace, unreadable=unreadable, data_folder=data)

    def plain() -> None:
        with file.open("rb") as opened:
            opened.read()

    def checked(path: Path) -> None:
        with Opener(policy).read(path) as opened:
            opened.read()

    def plain_write() -> None:
        with file.with_name("new").open("wb") as opened:
            opened.write(b"x")
            os.fsync(opened.fileno())

    def checked_write() -> None:
        with Opener(policy).place(file.with_name("new")) as place:
            place.replace(b"x", 0o644)

    def first() -> None:
        PathPolicy(workspace, unreadable=unreadable, data_folder=data).resolve_readable(file)

    open_us, table = microseconds(plain), Table("opening a file of the workspace")
    table.row("plain open and read", open_us, "us")
    table.row("checked open and read", microseconds(lambda: checked(file)), "us", open_us, "plain", "100 us on top")
    table.row("the same, a file with two names", microseconds(lambda: checked(twice)), "us", open_us, "plain")
    table.row("the first judgement of a process", microseconds(first, 50), "us")
    written_us = microseconds(plain_write, 200)
    table.row("plain write with fsync", written_us, "us")
    table.row("checked write in one step", microseconds(checked_write, 200), "us", written_us, "plain")
    table.show()
