"""What it costs to keep secrets out of a result of 100 kB."""

import statistics
import time
from collections.abc import Callable

import pytest

from nanobot.security.secrets import SecretIndex, redact
from tests.bench.measure import Table
from tests.house.repo import ROOT

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]


def median_ms(work: Callable[[str], object], text: str) -> float:
    times = []
    for _ in range(100):
        began = time.perf_counter()
        work(text)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def test_a_result_of_100_kb():
    code = (ROOT / "nanobot" / "runtime.py").read_text(encoding="utf-8")
    text = (code * (100_000 // len(code) + 1))[:100_000]
    floor = median_ms(str.split, text)
    table = Table("Keeping secrets out of 100 kB of code")

    for count in (2, 5, 20, 50):
        known = SecretIndex({f"{number}-Zq7xW2{number}kV9" * 2: "" for number in range(count)})
        cost = median_ms(known.redact, text)
        table.row(f"{count} known values, each in every encoding", cost, "ms", floor, "text.split()", "1 ms with five")
    table.row("all shapes of keys", median_ms(redact, text), "ms", floor, "text.split()")
    table.show()
