"""What was said is kept within bounds, and nothing that is owed is forgotten."""

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from nanobot.channels.websocket.chat import ClientChat

SAYING = st.tuples(st.booleans(), st.integers(0, 400))


def test_frames_carry_their_numbers():
    chat = ClientChat("anna")

    frames = [chat.add('{"type":"reply"}', "a"), chat.add('{"type":"delta"}')]

    assert [json.loads(frame.text) for frame in frames] == [
        {"seq": 1, "type": "reply"},
        {"seq": 2, "type": "delta"},
    ]
    assert chat.last == 2


def test_who_comes_back_reads_on_and_who_is_new_begins_with_what_is_owed():
    chat = ClientChat("anna")
    for number in range(4):
        chat.add("{}", f"id {number}")
    chat.confirm(2)

    assert [frame.seq for frame in chat.after(1)] == [2, 3, 4]
    assert chat.before_undelivered() == 2
    chat.confirm(4)
    assert chat.before_undelivered() == 4


def test_what_has_arrived_makes_room_at_once():
    chat = ClientChat("anna", most_frames=2)
    for number in range(4):
        chat.add("{}", f"id {number}")

    chat.confirm(4)

    assert [frame.seq for frame in chat.after(0)] == [3, 4]
    assert chat.has_gap(1)


async def test_all_who_wait_hear_of_the_next_frame():
    chat = ClientChat("anna")
    waiting = [asyncio.create_task(chat.wait_until(lambda: chat.last)) for _ in range(3)]
    await asyncio.sleep(0)

    chat.add("{}")

    await asyncio.wait_for(asyncio.gather(*waiting), 5)


@given(st.lists(SAYING, max_size=40), st.integers(0, 40))
def test_it_stays_within_bounds_and_forgets_nothing_that_is_owed(sayings, arrived):
    chat, said = ClientChat("anna", most_frames=10, most_characters=2000), []
    for number, (lasts, size) in enumerate(sayings):
        said.append(chat.add("{" + "x" * size, f"id {number}" if lasts else None))
        if number == arrived:
            chat.confirm(number)

    kept = chat.after(0)

    forgotten = [frame for frame in said if frame not in kept]
    could_go = [frame for frame in kept[:-1] if not frame.is_undelivered]
    assert kept[-1:] == said[-1:]
    assert not any(frame.is_undelivered for frame in forgotten)
    assert not could_go or (len(kept) <= 10 and sum(len(frame.text) for frame in kept) <= 2000)
    newest = max((frame.seq for frame in forgotten if frame.id is not None), default=0)
    assert [chat.has_gap(seq) for seq in (0, newest - 1, newest)] == [newest > 0, newest > 0, False] or not newest
    assert not chat.has_gap(newest)
