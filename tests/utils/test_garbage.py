"""The collector of garbage runs seldom in a process of ours, and as ever in anybody else's."""

import gc
from collections.abc import Iterator

import pytest

from nanobot.utils.garbage import delay_collection, freeze_imports


@pytest.fixture(autouse=True)
def as_found() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_what_a_process_of_ours_imports_is_frozen_once():
    delay_collection()

    freeze_imports()
    thresholds, once = gc.get_threshold(), gc.get_freeze_count()
    freeze_imports()

    assert once > 10_000
    assert gc.get_freeze_count() <= once
    assert thresholds[0] > 700


def test_a_bot_in_somebody_elses_process_leaves_the_collector_alone():
    gc.set_threshold(700, 10, 10)
    frozen = gc.get_freeze_count()

    freeze_imports()

    assert (gc.get_threshold(), gc.get_freeze_count()) == ((700, 10, 10), frozen)
