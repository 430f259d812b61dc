"""What only Feishu has: an app that has to be released, frames, cards that stream, topics that are sessions."""

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.bus.events import Address, Button
from nanobot.bus.journal import InboundState
from nanobot.channels.feishu.incoming import (
    Frame,
    Parts,
    event_of,
    format_forwarded,
    format_quote,
    read_event,
    read_message,
)
from nanobot.channels.status import ChannelState
from nanobot.messages.types import Provenance
from nanobot.testing.channels import PICTURE
from nanobot.testing.live_channel import delta, live
from tests.fakes.feishu import ANNA, APP_ID, BOT, HALL, HALL_ROOT, SECRET, ZOE
from tests.support.eventually import eventually
from tests.support.odd_json import odd_objects
from tests.support.sdk_program import sdk_program
from tests.support.streaming import streamed


async def test_a_secret_that_is_reset_meanwhile_fails_the_channel_and_the_message_waits(feishu, tmp_path):
    async with live(feishu, tmp_path) as life:
        await life.asked("hello")
        feishu.secret = "another"
        feishu.tokens.clear()
        receipt = life.post(Address("feishu", ANNA), "news")
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert "channels.feishu.appSecret" in life.channel.status.last_error
        assert not receipt.settled


_LINK = {"tag": "a", "text": "the page", "href": "https://x.test"}


@pytest.mark.parametrize(
    ("kind", "content", "heard"),
    [
        ("text", {"text": "ask @_user_2, @_user_1 and @_all"}, "ask @Zoe (ou_zoe), @nanobot and @all"),
        ("text", {"text": "@_user_1 /status"}, "/status"),
        ("text", {"text": "@_user_10 stays"}, "@_user_10 stays"),
        (
            "post",
            {
                "title": "News",
                "content": [[{"tag": "at", "user_id": "@_user_2"}, {"tag": "text", "text": " see "}, _LINK]],
            },
            "News\n@Zoe (ou_zoe) see the page (https://x.test)",
        ),
        ("post", {"en_us": {"content": [[{"tag": "code_block", "language": "PY", "text": "a"}]]}}, "```py\na\n```"),
        ("sticker", {"file_key": "f"}, "[sticker]"),
        ("location", {"name": "Home", "longitude": "1"}, "[location: Home]"),
        ("interactive", {"title": "Vote", "elements": [[{"tag": "text", "text": "yes?"}]]}, "[interactive: Vote yes?]"),
    ],
)
async def test_a_message_of_any_form_is_heard_with_names_for_people(feishu, tmp_path, kind, content, heard):
    mentions = [
        {"key": "@_user_1", "id": {"open_id": BOT}, "name": "nanobot"},
        {"key": "@_user_2", "id": {"open_id": ZOE}, "name": "Zoe"},
    ]
    async with live(feishu, tmp_path) as life:
        await feishu.writes(kind, content, mentions=mentions)
        await eventually(lambda: life.heard)

    assert life.heard[0].content == heard


@pytest.mark.parametrize(
    ("kind", "key", "heard"),
    [("image", "image_key", "image"), ("file", "file_key", "file"), ("audio", "file_key", "voice")],
)
async def test_a_file_alone_is_stored(feishu, tmp_path, kind, key, heard):
    name = feishu.put_file("a.bin", PICTURE if kind == "image" else b"some bytes", "img" if kind == "image" else "file")
    async with live(feishu, tmp_path) as life:
        await feishu.writes(kind, {key: name, "file_name": "../../a.txt", "duration": 1000})
        await eventually(lambda: life.heard)

    (path,) = life.heard[0].media
    assert Path(path).read_bytes() == feishu.stored[name][1]
    assert Path(path).is_relative_to(life.media)
    assert f"[{heard}: {path}]" in life.heard[0].content


async def test_what_no_person_says_is_acknowledged_and_not_heard(feishu, tmp_path):
    server = feishu
    own = server.add(server.rooms["oc_anna"], APP_ID, "text", {"text": "I am a bot"})
    system = server.add(server.rooms["oc_anna"], ANNA, "system", {"template": "joined"})
    async with live(feishu, tmp_path) as life:
        await life.is_up()
        told = [await server.tell_of(own), await server.tell_of(system)]
        told += [
            await server.tell("im.message.message_read_v1", {"reader": {}}),
            await server.tell("im.message.receive_v1", {}),
        ]
        await life.asked("after")
        await eventually(lambda: all(event.acknowledged for event in told))

    assert [message.content for message in life.heard] == ["after"]


async def test_feishu_is_told_to_send_again_what_is_not_journaled(feishu, tmp_path):
    async with live(feishu, tmp_path) as life:
        await life.is_up()
        life.bus.full = True
        await feishu.says("hello")
        (event,) = feishu.events
        await eventually(lambda: event.codes)

    assert event.codes == [500]


async def test_an_answered_message_gets_the_reaction_of_done_emoji_and_a_failed_one_does_not(feishu, tmp_path):
    async with live(feishu, tmp_path, silent=True, done_emoji="DONE") as life:
        failed, answered = await feishu.says("one"), await feishu.says("two")
        life.bus.settle(await life.hears("one"), InboundState.FAILED)
        life.answers(await life.hears("two"), "two it is")
        await life.shows("two it is")
        await eventually(lambda: feishu.reactions_on(answered))

    assert (feishu.reactions_on(answered), feishu.reactions_on(failed)) == (["DONE"], [])


async def test_what_is_replied_to_is_quoted_with_its_files(feishu, tmp_path):
    server = feishu
    content = {"file_key": server.put_file("plan.txt", b"the plan"), "file_name": "plan.txt"}
    plan = server.add(server.rooms[HALL], ZOE, "file", content)
    words = server.add(server.rooms[HALL], ZOE, "text", {"text": "buy milk"})
    async with live(feishu, tmp_path) as life:
        life.people.admit("feishu", ANNA, owner=True)
        _, own, answer = await life.asked("hello")
        of_file = await life.receives("sum it up", chat=HALL, mention=True, reply_to=plan.id)
        of_words = await life.receives("who?", chat=HALL, mention=True, reply_to=words.id)
        of_ours = await life.receives("sure?", reply_to=answer.id)
        mine = await feishu.says("my words")
        of_own = await life.receives("these?", reply_to=mine)
        command = await life.receives("/status", reply_to=words.id)

    assert [Path(path).read_bytes() for path in of_file.media] == [b"the plan"]
    assert of_words.content == f"[in reply to {ZOE}]\n> buy milk\nwho?"
    assert of_own.content == f"[in reply to {ANNA}]\n> my words\nthese?"
    assert {one.provenance for one in (own, of_ours, of_own)} == {Provenance.OWNER}
    assert {one.provenance for one in (of_words, of_file)} == {Provenance.PERSON}
    assert of_ours.content == "[in reply to you]\n> You said: hello\nsure?"
    assert command.content == "/status"


async def test_a_bundle_of_forwarded_messages_is_read(feishu, tmp_path):
    server = feishu
    async with live(feishu, tmp_path) as life:
        await life.is_up()
        life.people.admit("feishu", ANNA, owner=True)
        for text in ("one", "two"):
            server.add(server.rooms["oc_zoe"], ZOE, "text", {"text": text}).root = "in om_bundle"
        bundle = server.add(server.rooms["oc_anna"], ANNA, "merge_forward", {}, message_id="om_bundle")
        await server.tell_of(bundle)
        message = await life.hears("forwarded")

    assert message.content == "[forwarded]\none\ntwo"
    assert message.provenance is Provenance.PERSON


async def test_each_question_in_a_group_has_its_session_until_topics_are_not_apart(feishu, tmp_path):
    async with live(feishu, tmp_path) as life:
        first, one, answer = await life.asked("one", chat=HALL, mention=True)
        _, two, _ = await life.asked("two", chat=HALL, mention=True)
        more = await life.receives("more", chat=HALL, mention=True, reply_to=answer.id)
        _, inside, _ = await life.asked("inside", chat=HALL, mention=True, thread=HALL_ROOT)
    async with live(feishu, tmp_path, topic_isolation=False) as life:
        _, flat, _ = await life.asked("flat", chat=HALL, mention=True)
        _, topic, in_topic = await life.asked("within", chat=HALL, mention=True, thread=HALL_ROOT)

    assert one.session_key == more.session_key == f"feishu:{HALL}:{first}"
    assert two.session_key not in (one.session_key, inside.session_key)
    assert inside.session_key == f"feishu:{HALL}:{HALL_ROOT}"
    assert {flat.session_key, topic.session_key} == {f"feishu:{HALL}"}
    assert in_topic.thread_id == HALL_ROOT


async def test_the_history_is_read_after_an_outage_and_nothing_is_heard_twice(feishu, tmp_path):
    feishu.pushes_again = False
    async with live(feishu, tmp_path) as life:
        await life.is_up()
        await life.asked("before")
        await life.asked("in the hall", chat=HALL, mention=True)
    for number in range(210):
        await feishu.says(f"missed {number}")
    await feishu.says("missed in the hall", chat=HALL, mention=True)
    await feishu.says("not for the bot", chat=HALL)
    async with live(feishu, tmp_path) as life:
        await life.hears("missed in the hall")
        await life.shows("You said: missed 209")
        await life.asked("after")

    own = [message.content for message in life.heard if message.chat_id == ANNA]
    assert own == [*(f"missed {number}" for number in range(10, 210)), "after"]  # the last two hundred
    assert len(life.heard) == 202


async def test_without_the_permission_for_the_history_new_messages_are_heard_also_those_in_several_frames(
    feishu, tmp_path, caplog
):
    feishu.part_bytes = 200
    async with live(feishu, tmp_path) as life:
        await life.asked("before")
    feishu.scopes.discard("history")
    async with live(feishu, tmp_path) as life:
        message_id, message, _ = await life.asked(f"long: {'word ' * 200}".strip())
        await eventually(lambda: feishu.acknowledged(message_id))

    assert message.content.endswith("word")
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_a_short_plain_answer_is_a_text_and_a_formatted_one_a_card_unless_it_is_refused(feishu, tmp_path):
    to = Address("feishu", ANNA)
    async with live(feishu, tmp_path) as life:
        await life.posted(to, "Done. (It took 3 s; see https://x.test/a_b*c)")
        await life.posted(to, "## Title\n\n**bold** and `code`, a_b <at id=all></at> [x](https://x.test) 2 * 3")
        feishu.takes_cards = False
        await life.posted(to, "**all** of it")
        plain, formatted, refused = feishu.in_chat(ANNA)

    assert (plain.kind, plain.content["text"]) == ("text", "Done. (It took 3 s; see https://x.test/a_b*c)")
    assert formatted.content["body"]["elements"][0]["content"] == (
        "**Title**\n\n**bold** and `code`, a&#95;b &#60;at id=all&#62;&#60;/at&#62; [x](https://x.test) 2 &#42; 3"
    )
    assert (refused.kind, refused.content) == ("text", {"text": "all of it"})


async def test_a_streamed_answer_stops_streaming_when_it_is_complete(feishu, tmp_path):
    async with live(feishu, tmp_path, silent=True) as life:
        message = await streamed(life, "one ")
        card = feishu.in_chat(ANNA)[0].card
        assert card is not None
        assert card.streams
        life.answers(message, "one two")
        await life.shows("one two")
        await eventually(lambda: not card.streams)


async def test_an_answer_that_takes_longer_than_a_card_may_stream_goes_on_in_it(feishu, tmp_path):
    async with live(feishu, tmp_path, silent=True) as life:
        message = await streamed(life, "one ")
        delta(life, message, "two ")
        await life.shows("two")
        card = feishu.in_chat(ANNA)[0].card
        assert card is not None
        card.streams = False  # as after ten minutes
        delta(life, message, "three ")
        await life.shows("three")
        life.answers(message, "one two three four")
        await life.shows("four")
        await life.posted(message, "next")

    assert [shown.text for shown in feishu.shown()] == ["one two three four", "next"]


async def test_without_the_permission_for_cards_the_answer_comes_whole(feishu, tmp_path):
    feishu.scopes.discard("cardkit:card:write")
    async with live(feishu, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        message = await life.receives("hello")
        delta(life, message, "one ")
        await eventually(lambda: "create_card" in feishu.calls)
        life.answers(message, "one two")
        await life.shows("one two")
        await life.posted(message, "next")

    assert [shown.text for shown in feishu.shown()] == ["one two", "next"]
    assert life.dead == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.png", "image"),
        ("a.svg", "file"),
        ("a.mp4", "media"),
        ("a.ogg", "audio"),
        ("a.docx", "file"),
        ("a.zip", "file"),
    ],
)
async def test_a_file_is_shown_as_what_it_is(feishu, tmp_path, name, kind):
    (tmp_path / name).write_bytes(PICTURE if name == "a.png" else b"something")
    async with live(feishu, tmp_path) as life:
        await life.posted(Address("feishu", HALL), "", media=[str(tmp_path / name)])

    assert [(post.kind, shown.files) for post, shown in zip(feishu.in_chat(HALL), feishu.shown(HALL), strict=True)] == [
        (kind, [name])
    ]


async def test_an_answer_to_a_message_that_was_withdrawn_stands_in_the_chat(feishu, tmp_path):
    async with live(feishu, tmp_path, silent=True) as life:
        message_id = await feishu.says("hello", chat=HALL, mention=True)
        message = await life.hears("hello")
        del feishu.rooms[HALL].posts[message_id]
        await life.posted(message, "the answer", reply_to=message_id)

    assert [(shown.text, shown.reply_to) for shown in feishu.shown(HALL)] == [("the answer", None)]


async def test_a_button_in_a_group_is_pressed_in_the_session_that_offered_it_also_after_a_restart(feishu, tmp_path):
    async with live(feishu, tmp_path, silent=True) as life:
        message = await life.receives("hello", chat=HALL, mention=True)
        (shown_id,) = await life.posted(message, "sure?", buttons=(Button("Yes", "do it"),))
    async with live(feishu, tmp_path, silent=True) as life:
        await life.is_up()
        await feishu.press_button(shown_id, "Yes")
        pressed = await life.hears("do it")
        await eventually(lambda: feishu.events[-1].acknowledged)

    assert pressed.session_key == message.session_key
    assert pressed.in_group


NAMES = (
    "sender sender_id open_id content mentions id key name action value chat say tag text title image_key file_key "
    "create_time root_id parent_id body msg_type"
)
objects = odd_objects(NAMES, "img", "at", "text", "ou_bot", "oc_1")


@given(objects, objects, st.sampled_from(["text", "post", "image", "file", "merge_forward", "interactive", "other"]))
def test_no_event_makes_the_reader_fail(event, content, kind):
    ids = {"chat_id": "oc", "message_id": "om", "message_type": kind, "content": json.dumps(content)}
    whole = {"sender": {"sender_id": {"open_id": "ou"}, "sender_type": "user"}, "message": event | ids}
    read = read_message(whole, "ou_bot", topic_isolation=True)
    assert read is not None
    for kind_of_event in ("im.message.receive_v1", "card.action.trigger", "other"):
        for one in (event, whole):
            data = json.dumps({"header": {"event_type": kind_of_event, "event_id": "e"}, "event": one}).encode()
            read_event(data, "ou_bot", topic_isolation=True)
    read_message(event_of(event, is_private=True), "ou_bot", topic_isolation=True)
    format_quote([event], read, "ou_bot", APP_ID)
    format_forwarded([event, event], "ou_bot")


@given(st.binary(max_size=60))
def test_no_bytes_make_the_decoder_fail_otherwise_than_with_a_value_error(data):
    try:
        frame = Frame.decode(data)
        Parts().add(frame)
    except ValueError:
        return
    assert frame.answer(200)


@pytest.mark.slow
async def test_the_vendor_s_own_client_takes_the_fake_for_feishu(feishu):
    """It acknowledges an event that comes in parts, does not the one it fails at, and streams a card, sent once."""
    feishu.part_bytes = 150
    for text in ("good", "bad"):
        await feishu.says(text)
    async with sdk_program("feishu_sdk", feishu.url, APP_ID, SECRET) as read:
        heard = [await read() for _ in range(3)]
        good, bad = feishu.events
        await eventually(lambda: good.codes and bad.codes)

    assert [line["text"] for line in heard[:2]] == ["good", "bad"]
    assert (good.codes, bad.codes) == ([200], [500])
    assert heard[2] == {"codes": [True, 0, 0, 0, 0], "frames": True}
    assert [(shown.text, shown.edits) for shown in feishu.shown()] == [("said", 1)]
