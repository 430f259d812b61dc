"""Rooms of Matrix: invitations, what a sync leaves out, replies, mentions and encrypted rooms without encryption."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.channels.matrix.incoming import Bot, read_message
from nanobot.channels.payload import Payload
from nanobot.messages.types import Provenance
from nanobot.testing.checks import captured_logs
from nanobot.testing.live_channel import live
from tests.fakes.matrix import ANNA, BOT, DIRECT, KITCHEN, ZOE
from tests.support.eventually import eventually

NEW = "!new:example.org"


def text(body: str, **more: object) -> dict[str, object]:
    return {"msgtype": "m.text", "body": body, **more}


async def test_an_invitation_of_an_allowed_person_is_accepted_and_what_they_wrote_meanwhile_answered(matrix, tmp_path):
    async with live(matrix, tmp_path) as life:
        await life.is_up()
        matrix.rooms[NEW] = type(matrix.rooms[DIRECT])(NEW)
        await matrix.writes(NEW, ANNA, text("long before"))
        await matrix.invites(NEW, ANNA)
        await matrix.writes(NEW, ANNA, text("are you there?"))
        await life.shows("You said: are you there?", NEW)

    assert [message.content for message in life.heard] == ["are you there?"]


async def test_a_strangers_invitation_waits_until_they_are_allowed_also_over_a_restart(matrix, tmp_path):
    async with live(matrix, tmp_path) as life:
        await life.is_up()
        await matrix.invites(NEW, ZOE)
        (waiting,) = await eventually(lambda: life.people.pending("matrix"))
        await life.asked("go on")

        assert matrix.rooms[NEW].members[BOT] == "invite"
    async with live(matrix, tmp_path) as life:
        life.people.approve(waiting.code)
        await eventually(lambda: matrix.rooms[NEW].members[BOT] == "join")


async def test_the_first_sync_of_an_account_is_no_conversation(matrix, tmp_path):
    await matrix.writes(DIRECT, ANNA, text("before the bot was there"))
    async with live(matrix, tmp_path) as life:
        await life.asked("hello")

    assert [message.content for message in life.heard] == ["hello"]


async def test_what_a_sync_leaves_out_of_a_busy_room_is_fetched_and_in_order(matrix, tmp_path):
    async with live(matrix, tmp_path) as life:
        await life.asked("before")
    matrix.timeline_limit = 3
    for number in range(240):
        await matrix.writes(DIRECT, ANNA, text(f"m{number}"))
    async with live(matrix, tmp_path, silent=True) as life:
        await life.hears("m239")

    assert [message.content for message in life.heard] == [f"m{number}" for number in range(240)]
    assert matrix.history_pages == 3


async def test_more_than_can_be_caught_up_on_is_said_in_the_chat(matrix, tmp_path):
    async with live(matrix, tmp_path) as life:
        await life.asked("before")
    matrix.timeline_limit = 3
    for number in range(520):
        await matrix.writes(DIRECT, ANNA, text(f"m{number}"))
    with captured_logs(logging.WARNING) as records:
        async with live(matrix, tmp_path, silent=True) as life:
            await life.hears("m519")
            await life.shows("You wrote more while I was away")

    assert "m17" in life.heard[0].content
    assert len(life.heard) == 503
    assert any("more was written in" in one.getMessage() for one in records)


async def test_edits_and_notices_of_other_bots_are_no_messages(matrix, tmp_path):
    async with live(matrix, tmp_path) as life:
        message_id, _, _ = await life.asked("hello")
        replaces = {"rel_type": "m.replace", "event_id": message_id}
        await matrix.writes(DIRECT, ANNA, text("* hello!", **{"m.relates_to": replaces}))
        await matrix.writes(DIRECT, ANNA, {"msgtype": "m.notice", "body": "beep"})
        await life.asked("after")

    assert [message.content for message in life.heard] == ["hello", "after"]


async def test_a_reply_is_read_with_what_it_answers_and_another_persons_words_are_theirs(matrix, tmp_path):
    async with live(matrix, tmp_path) as life:
        await life.is_up()
        said = await matrix.says("the code is 7", sender=ZOE, chat=KITCHEN)
        fallback = f"> <{ZOE}> the code is 7\n\nNanobot: is that right?"
        await matrix.writes(KITCHEN, ANNA, text(fallback, **{"m.relates_to": {"m.in_reply_to": {"event_id": said}}}))
        message = await life.hears("is that right?")

    assert message.content == "[in reply to Zoe]\n> the code is 7\nis that right?"
    assert message.provenance is Provenance.PERSON


@pytest.mark.parametrize("allowed", [True, False])
async def test_everybody_of_a_room_includes_the_bot_only_where_the_config_says_so(matrix, tmp_path, allowed):
    async with live(matrix, tmp_path, allow_room_mentions=allowed) as life:
        await life.is_up()
        await matrix.writes(KITCHEN, ANNA, text("@room lunch", **{"m.mentions": {"room": True}}))
        await life.asked("after", chat=KITCHEN, mention=True)

    assert [message.content for message in life.heard] == [*(["@room lunch"] if allowed else []), "after"]


async def test_an_accepted_message_gets_a_read_receipt_and_others_none(matrix, tmp_path):
    async with live(matrix, tmp_path) as life:
        await life.is_up()
        await matrix.says("psst", chat=KITCHEN)
        message_id, _, _ = await life.asked("hello")
        await eventually(lambda: matrix.receipts)

    assert matrix.receipts == [(DIRECT, message_id)]


async def test_an_encrypted_room_is_told_once_that_it_cannot_be_read_and_gets_nothing_else(matrix, tmp_path):
    state = {"state_key": ""}
    matrix._add(DIRECT, ANNA, "m.room.encryption", {"algorithm": "m.megolm.v1.aes-sha2"}, **state)
    secret = {
        "algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "AwgAEn", "sender_key": "k", "device_id": "D",
        "session_id": "s",
    }  # fmt: skip
    async with live(matrix, tmp_path) as life:
        await life.is_up()
        for _ in range(2):
            await matrix.writes(DIRECT, ANNA, secret, "m.room.encrypted")
        await life.shows("This room is encrypted")
        life.post(life_address(life), "a secret")
        await eventually(lambda: life.dead)

    assert len(matrix.shown()) == 1
    assert "nanobot[matrix-e2e]" in life.dead[0]


def life_address(life):
    from nanobot.bus.events import Address

    return Address(life.platform.name, DIRECT)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["msgtype", "body", "m.relates_to", "m.mentions", "file", "url", "info", "filename", "formatted_body"]


@given(st.dictionaries(st.sampled_from(KEYS), JSON), st.dictionaries(st.sampled_from(["sender", "event_id"]), JSON))
def test_no_event_whatever_it_contains_breaks_the_reading(content, event):
    read_message(Payload({"type": "m.room.message", "origin_server_ts": 1, "content": content} | event), Bot(BOT))
