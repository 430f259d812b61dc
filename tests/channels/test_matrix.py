"""What only Matrix has: passwords and devices, invitations, what a sync leaves out, encrypted rooms."""

import logging

import pytest
from aiohttp import web

from nanobot.bus.events import Address, OutboundKind
from nanobot.messages.types import Provenance
from nanobot.testing.checks import captured_logs
from nanobot.testing.live_channel import live
from tests.fakes.matrix import ANNA, BOT, DIRECT, KITCHEN, PASSWORD, ZOE, Room
from tests.support.eventually import eventually
from tests.support.streaming import streamed


async def test_login_tries_the_credentials_and_says_what_to_do_next(matrix, tmp_path, capsys):
    async with live(matrix, tmp_path, password=PASSWORD) as life:
        await life.is_up()
        assert await life.channel.login()

    assert f"Your bot is {BOT}; invite it" in capsys.readouterr().out


async def test_a_password_logs_in_as_the_same_device_after_a_restart_and_once_a_process(matrix, tmp_path):
    async with live(matrix, tmp_path, password=PASSWORD) as life:
        await life.asked("one")
        await matrix.drop()
        await life.asked("two")
    async with live(matrix, tmp_path, password=PASSWORD) as life:
        await life.asked("three")

    first, second = matrix.logins
    assert not first.get("device_id")
    assert second["device_id"] == "DEVICE1"


async def test_a_password_logs_in_again_where_its_session_was_ended(matrix, tmp_path):
    async with live(matrix, tmp_path, password=PASSWORD) as life:
        await life.asked("one")
        await matrix.revoke()
        await life.asked("two")

    assert len(matrix.logins) == 2


async def test_a_domain_whose_homeserver_is_elsewhere_is_followed(matrix, tmp_path):
    async def discover(_: web.Request) -> web.Response:
        return web.json_response({"m.homeserver": {"base_url": f"{matrix.url}/"}})

    app = web.Application()
    app.add_routes([web.get("/.well-known/matrix/client", discover)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
    try:
        domain = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with live(matrix, tmp_path, homeserver=domain) as life:
            await life.asked("hello")
    finally:
        await site.stop()
        await runner.cleanup()


NEW = "!new:example.org"


def text(body: str, **more: object) -> dict[str, object]:
    return {"msgtype": "m.text", "body": body, **more}


async def test_an_invitation_of_an_allowed_person_is_accepted_and_what_they_wrote_meanwhile_answered(matrix, tmp_path):
    async with live(matrix, tmp_path) as life:
        await life.is_up()
        matrix.rooms[NEW] = Room(NEW)
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
        life.post(Address("matrix", DIRECT), "a secret")
        await eventually(lambda: life.dead)

    assert len(matrix.shown()) == 1
    assert "nanobot[matrix-e2e]" in life.dead[0]


async def test_an_answer_is_formatted_and_mentions_nobody(matrix, tmp_path):
    async with live(matrix, tmp_path) as life:
        await life.posted(Address("matrix", DIRECT), "**now** @room\n\n| a | b |\n|---|---|\n| 1 | 2 |")

    (event,) = matrix.of_bot(DIRECT)
    assert "<strong>now</strong>" in event["content"]["formatted_body"]
    assert "<th" in event["content"]["formatted_body"]
    assert event["content"]["body"].startswith("now @room")
    assert event["content"]["m.mentions"] == {}


async def test_progress_is_a_notice_and_the_reply_a_message(matrix, tmp_path):
    async with live(matrix, tmp_path, silent=True) as life:
        message = await life.receives("hello")
        life.post(message, "looking", kind=OutboundKind.PROGRESS)
        await life.shows("looking")
        await life.posted(message, "found")

    assert [event["content"]["msgtype"] for event in matrix.of_bot(DIRECT)] == ["m.notice", "m.text"]


async def test_a_streamed_answer_in_a_thread_stays_there(matrix, tmp_path):
    async with live(matrix, tmp_path, silent=True) as life:
        message = await streamed(life, "one ", chat=KITCHEN, thread="$root", mention=True)
        life.answers(message, "one two")
        shown = await life.shows("one two", KITCHEN)

    assert (shown.thread_id, shown.edits) == ("$root", 1)


async def test_a_person_without_a_room_is_invited_to_a_new_one(matrix, tmp_path):
    async with live(matrix, tmp_path) as life:
        await life.is_up()
        chat = await life.manager.chat_with("matrix", "@bob:example.org")
        assert chat is not None
        await life.posted(Address("matrix", chat), "good morning")

    assert matrix.rooms[chat].members == {BOT: "join", "@bob:example.org": "invite"}


async def test_rooms_are_found_by_alias_name_and_id_and_people_by_id(matrix, tmp_path):
    state = {"state_key": ""}
    matrix._add(KITCHEN, ANNA, "m.room.name", {"name": "Kitchen"}, **state)
    async with live(matrix, tmp_path) as life:
        await life.is_up()
        names = ["#kitchen:example.org", "kitchen", KITCHEN, ANNA, "#attic:example.org", "attic"]
        found = [await life.channel.find(name) for name in names]

    assert found == [KITCHEN, KITCHEN, KITCHEN, DIRECT, None, None]


async def test_a_file_that_is_larger_than_the_limit_is_named_in_the_answer_and_to_the_model(matrix, tmp_path):
    (tmp_path / "large.png").write_bytes(b"x" * 3000)
    async with live(matrix, tmp_path, max_media_bytes=2000, silent=True) as life:
        message = await life.receives("look", file=tmp_path / "large.png")
        await life.posted(message, "here", media=[str(tmp_path / "large.png")])

    assert "[image: download failed]" in message.content
    assert "the limit here is" in matrix.shown()[1].text
