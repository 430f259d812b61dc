"""Format, lint, contracts, dependencies and spelling are tests like any other. CI checks the types before them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.repo import ROOT

_BIN = Path(sys.executable).parent

CHECKS = {
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "contracts": ["lint-imports", "--no-cache"],
}
SLOW_CHECKS = {
    "dependencies": ["deptry", "nanobot"],
    "spelling": ["codespell"],
}


@pytest.mark.parametrize(
    "command",
    [
        *(pytest.param(command, id=name) for name, command in CHECKS.items()),
        *(pytest.param(command, id=name, marks=pytest.mark.slow) for name, command in SLOW_CHECKS.items()),
    ],
)
def test_the_house_is_in_order(command):
    program, *arguments = command
    environment = {**os.environ, "PYTHONUTF8": "1", "NO_COLOR": "1"}

    done = subprocess.run(
        [str(_BIN / program), *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, encoding="utf-8"
    )

    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-6_000:]}{done.stderr[-3_000:]}"


@pytest.mark.xdist_group("house")
def test_tests_of_a_group_run_in_one_worker(request: pytest.FixtureRequest):
    if not hasattr(request.config, "workerinput"):
        pytest.skip("all tests run in one process")

    assert request.node.nodeid.endswith("@house")
