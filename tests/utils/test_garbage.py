"""The collector of garbage: seldom while a bot is alive, as it was before when none is."""

import gc
from collections.abc import Iterator

import pytest

from nanobot.utils.garbage import freeze_imports, infrequent_collection


@pytest.fixture(autouse=True)
def as_found() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_it_collects_less_often_while_a_bot_is_alive_and_as_before_afterwards():
    gc.set_threshold(700, 10, 10)

    with infrequent_collection():
        meanwhile = gc.get_threshold()

    assert meanwhile[0] > 700
    assert gc.get_threshold() == (700, 10, 10)


def test_bots_may_leave_in_any_order():
    gc.set_threshold(700, 10, 10)
    first, second = infrequent_collection(), infrequent_collection()

    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    meanwhile = gc.get_threshold()
    second.__exit__(None, None, None)

    assert meanwhile[0] > 700
    assert gc.get_threshold() == (700, 10, 10)


def test_who_has_switched_it_off_keeps_it_off():
    gc.disable()
    try:
        with infrequent_collection():
            meanwhile = gc.isenabled()
    finally:
        gc.enable()

    assert not meanwhile


def test_what_a_process_of_ours_imports_is_never_walked_once_its_first_bot_is_there():
    frozen = gc.get_freeze_count()
    freeze_imports()

    with infrequent_collection():
        once = gc.get_freeze_count()
        with infrequent_collection():
            twice = gc.get_freeze_count()

    assert once - frozen > 10_000
    assert twice <= once  # some of it may have gone meanwhile


def test_a_bot_in_somebody_elses_process_leaves_what_is_there_to_the_collector():
    frozen = gc.get_freeze_count()

    with infrequent_collection():
        meanwhile = gc.get_freeze_count()

    assert meanwhile == frozen
