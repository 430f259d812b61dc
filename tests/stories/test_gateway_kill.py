"""Killed anywhere between a message and its reply: one visible reply each, in its chat, and nothing runs twice."""

import json
import os

import pytest

from tests.crash.delivery_sweep import KINDS
from tests.support.home import told

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kill -9 and fork are POSIX")


def every_sending(each: int, seed: int, kind: str) -> dict[str, int]:
    seen = json.loads(told("tests.crash.delivery_sweep", str(each), str(seed), kind))
    assert not seen["problems"]
    counts: dict[str, int] = seen["counts"]
    print(kind, counts)
    return counts


@pytest.mark.timeout(180)  # 3 s alone; a busy machine takes many times as long
@pytest.mark.parametrize("kind", ["streams"])
def test_eight_messages_have_one_reply_each_whenever_the_gateway_is_killed_or_stopped(kind: str):
    counts = every_sending(each=397, seed=4, kind=kind)

    assert counts["kills"] + counts["stopped"] >= 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_eight_messages_have_one_reply_each_at_each_write_and_each_step(kind: str, seed: int):
    counts = every_sending(each=1, seed=seed, kind=kind)

    assert counts["kills"] > 500
    assert counts["stopped"] > 200
    assert counts["killed again"] > 100
