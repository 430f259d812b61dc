"""Conformance checks, which any test runner can run:

@pytest.mark.parametrize("check", tool_checks(Postage, {"country": "italy"}), ids=str)
def test_the_tool(check, tmp_path):
    check(tmp_path)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any
from unittest import SkipTest


@dataclass(frozen=True, slots=True)
class Check:
    """A conformance test. `skipped` says why it does not apply to this plugin; empty if it applies."""

    name: str
    test: Callable[[Path], Awaitable[None]]
    """Called with an empty folder. Raises AssertionError."""
    skipped: str = ""

    def __call__(self, folder: Path) -> None:
        """Run the check in a new event loop. Raises AssertionError, or unittest.SkipTest, which pytest supports."""
        asyncio.run(self.run(folder))

    async def run(self, folder: Path) -> None:
        """Run the check in the current event loop."""
        if self.skipped:
            raise SkipTest(self.skipped)
        await self.test(folder)

    def __str__(self) -> str:
        return self.name


def checks_of(
    module: Mapping[str, Any], run: Callable[[Any, Path], Awaitable[None]], skip: Callable[[Any], str] = lambda test: ""
) -> list[Check]:
    """A check for each function of a module (its `globals()`) whose name begins with `test_`. `run` calls it."""
    tests = {name.removeprefix("test_"): test for name, test in module.items() if name.startswith("test_")}
    return [Check(name, partial(run, test), skip(test)) for name, test in tests.items()]


@contextmanager
def captured_logs(level: int) -> Iterator[list[logging.LogRecord]]:
    """Collect what nanobot logs at this level and above, until the block ends."""
    handler = BufferingHandler(1_000_000)
    handler.setLevel(level)
    log = logging.getLogger("nanobot")
    before = log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield handler.buffer
    finally:
        log.setLevel(before)
        log.removeHandler(handler)
