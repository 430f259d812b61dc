"""Several threads read the older part of a session at once: each message is there once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from nanobot.session.manager import Session, SessionManager

COUNT = 4_000
AT_ONCE = 6


@pytest.mark.parametrize(
    "read",
    [lambda session: session.messages, lambda session: session.since(0), lambda session: session.get_history(COUNT)],
    ids=["all of it", "since the first one", "a long history"],
)
def test_each_message_is_there_once_whoever_reads_beside(tmp_path: Path, read: Callable[[Session], object]):
    manager = SessionManager(tmp_path)
    written = manager.get_or_create("a:b")
    for at in range(COUNT):
        written.add_message(("user", "assistant")[at % 2], f"message {at}")
    manager.save(written)
    session = SessionManager(tmp_path).get_or_create("a:b")
    together = Barrier(AT_ONCE)

    def reader(_: int) -> int:
        together.wait()
        read(session)
        return session.message_count

    with ThreadPoolExecutor(AT_ONCE) as threads:
        counts = list(threads.map(reader, range(AT_ONCE)))

    assert counts == [COUNT] * AT_ONCE
    assert [row["content"] for row in session.messages] == [f"message {at}" for at in range(COUNT)]
