"""What the bot writes on Matrix: formatted, in threads, as notices, and to people it has no room with."""

from nanobot.bus.events import Address, OutboundKind
from nanobot.testing.live_channel import delta, live
from tests.fakes.matrix import ANNA, BOT, DIRECT, KITCHEN
from tests.support.eventually import eventually


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
        await matrix.says("hello")
        message = await life.hears("hello")
        life.post(message, "looking", kind=OutboundKind.PROGRESS)
        await life.shows("looking")
        await life.posted(message, "found")

    assert [event["content"]["msgtype"] for event in matrix.of_bot(DIRECT)] == ["m.notice", "m.text"]


async def test_a_streamed_answer_in_a_thread_stays_there(matrix, tmp_path):
    async with live(matrix, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        await matrix.says("hello", chat=KITCHEN, thread="$root", mention=True)
        message = await life.hears("hello")
        delta(life, message, "one ")
        await life.shows("one", KITCHEN)
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


async def test_a_file_that_is_larger_than_the_limit_is_named_in_the_answer(matrix, tmp_path):
    (tmp_path / "large.bin").write_bytes(b"x" * 3000)
    async with live(matrix, tmp_path, max_media_bytes=2000) as life:
        await life.posted(Address("matrix", DIRECT), "here", media=[str(tmp_path / "large.bin")])
        await eventually(lambda: len(matrix.shown()) == 2)

    assert "the limit here is" in matrix.shown()[1].text


async def test_a_received_file_that_is_larger_than_the_limit_is_said_to_the_model(matrix, tmp_path):
    (tmp_path / "large.png").write_bytes(b"x" * 3000)
    async with live(matrix, tmp_path, max_media_bytes=2000) as life:
        await matrix.says("look", file=tmp_path / "large.png")
        message = await life.hears("look")

    assert "[image: download failed]" in message.content
