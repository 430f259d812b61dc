"""What only Discord has: sessions that are resumed, a past that is read up, commands and buttons, nobody's phone."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from nanobot.bus.events import Address, Button, MenuEntry, OutboundKind, OutboundMessage
from nanobot.bus.journal import open_journal
from nanobot.channels.cursors import StateFile
from nanobot.channels.discord.channel import DiscordHistory, id_at
from nanobot.channels.status import ChannelState
from nanobot.messages.types import Provenance
from nanobot.testing import Bot
from nanobot.testing.live_channel import delta, live
from tests.fakes.discord import world as there
from tests.fakes.discord.gateway import INVALID, RECONNECT
from tests.fakes.discord.world import Message
from tests.fakes.platform_discord import DiscordPlatform
from tests.support.eventually import eventually


@pytest.fixture
async def discord(tmp_path: Path) -> AsyncIterator[DiscordPlatform]:
    async with DiscordPlatform(tmp_path).open() as platform:
        yield platform


# the connection


async def test_asked_to_reconnect_it_resumes_or_begins_anew_and_hears_what_was_said_meanwhile(discord, tmp_path):
    async with live(discord, tmp_path) as life:
        await life.asked("before")
        discord.rest.asked.clear()
        await discord.gateway.say(RECONNECT)
        await discord.says("meanwhile")
        await life.asked("after")
        resumed = [discord.gateway.log.count(word) for word in ("identify", "resume")]
        asked = [*discord.rest.asked]
        discord.gateway.sessions.clear()
        await discord.gateway.say(INVALID, False)
        await discord.says("forgotten")
        await life.asked("anew")

    assert [one.content for one in life.heard] == ["before", "meanwhile", "after", "forgotten", "anew"]
    assert resumed == [1, 1]
    assert not any(method == "GET" for method, _ in asked)
    assert discord.gateway.log.count("identify") == 2


async def test_a_gateway_that_hangs_up_at_once_is_not_stormed(discord, tmp_path):
    async with live(discord, tmp_path) as life:
        await life.asked("before")
        asked = len(discord.gateway.log)
        discord.gateway.hangs_up = True
        await discord.drop()
        await eventually(lambda: life.channel.status.state is ChannelState.DOWN)
        await asyncio.sleep(0.1)
        tries = len(discord.gateway.log) - asked
        discord.gateway.hangs_up = False
        await life.asked("after")

    assert 0 < tries < 20


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ({}, 4004, "channels.discord.token"),
        ({}, 4011, "2,500 servers"),
        ({}, 4013, "channels.discord.intents"),
        ({}, 4014, "MESSAGE CONTENT INTENT"),
        ({"intents": 37377 | 1 << 1}, 4014, "switch on SERVER MEMBERS INTENT at"),
        ({"proxy": "socks5://127.0.0.1:1080"}, None, "channels.discord.proxy"),
        ({"token": ""}, None, "channels.discord.token is not set. Run `nanobot channels login discord`."),
        ({"token": "wrong"}, None, "Reset Token"),
    ],
)
async def test_what_only_the_owner_can_mend_says_how(discord, tmp_path, settings, code, says):
    discord.gateway.forbidden = 1 << 1
    async with live(discord, tmp_path, **settings) as life:
        if code and not settings:
            await life.is_up()
            await discord.gateway.close(code)
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

    assert says in life.channel.status.last_error
    assert ("MESSAGE CONTENT" in life.channel.status.last_error) is (says == "MESSAGE CONTENT INTENT")


# what was said while nobody listened


async def test_nothing_is_answered_from_before_the_first_connection_and_later_all_once_and_in_order(discord, tmp_path):
    old = Message(discord.world.ids.next(ago_s=3600), there.GROUP, there.PERSON, f"<@{there.BOT}> old")
    discord.world.chats[there.GROUP].messages[old.id] = old
    async with live(discord, tmp_path) as life:
        await life.asked("before", chat=there.GROUP, mention=True)
    for text in ("one", "two"):
        await discord.says(text, chat=there.GROUP, mention=True)
    await discord.says("in a thread", chat=there.GROUP, thread=there.THREAD, mention=True)
    await discord.says("not for the bot", chat=there.GROUP)
    await discord.says("the first private words")
    discord.rest.hides_history = 2  # it is asked for again until it is told
    for number in range(2):
        async with live(discord, tmp_path) as again:
            await eventually(lambda: len(discord.shown(there.GROUP)) == 4)
            await again.asked(f"after {number}")
            await again.manager.drain()

    told = [one.text.removeprefix("You said: ") for one in discord.shown(there.GROUP) if not one.thread_id]
    assert [one.content for one in life.heard] == ["before"]
    assert (told[0], sorted(told[1:])) == ("before", ["one", "two"])
    assert [one.text for one in discord.shown(there.GROUP) if one.thread_id] == ["You said: in a thread"]
    private = [one.text.removeprefix("You said: ") for one in discord.shown()]
    assert private == ["the first private words", "after 0", "after 1"]
    assert discord.rest.hides_history == 0


async def test_of_a_long_absence_the_last_seven_days_are_read_up(discord, tmp_path):
    async with live(discord, tmp_path) as life:
        await life.asked("before")
    saved = tmp_path / "discord.json"
    past = await StateFile(saved).load(DiscordHistory())
    past.since, past.private = id_at(datetime.now(UTC) - timedelta(days=30)), {}
    saved.write_bytes(TypeAdapter(DiscordHistory).dump_json(past))
    for days in (8, 6):
        sent = discord.world.ids.next(ago_s=days * 86_400)
        message = Message(sent, there.GROUP, there.PERSON, f"<@{there.BOT}> {days} days ago")
        discord.world.chats[there.GROUP].messages[sent] = message
    async with live(discord, tmp_path) as life:
        await life.shows("You said: 6 days ago", there.GROUP)

    assert "8 days ago" not in str(life.heard)


async def test_a_message_that_the_disk_refused_is_heard_once_there_is_room_also_after_a_restart(discord, tmp_path):
    async with live(discord, tmp_path) as life:
        await life.asked("before")
        life.bus.full = True
        await discord.says("one")
        await discord.says("two")
        await eventually(lambda: life.bus.refused)
        life.bus.full = False
        await life.shows("You said: two")
        refused = life.bus.refused
        life.bus.full = True
        await discord.says("three")
        await eventually(lambda: life.bus.refused > refused)
    async with live(discord, tmp_path) as again:
        await again.asked("four")

    assert [one.content for one in life.heard] == ["before", "one", "two"]
    assert [one.content for one in again.heard] == ["three", "four"]
    assert discord.gateway.log.count("identify") == 2


async def test_a_private_chat_is_remembered_at_once_so_that_a_crash_forgets_nobody(discord, tmp_path):
    saved = tmp_path / "discord.json"
    async with live(discord, tmp_path) as life:
        await life.asked("hello")
        await eventually(lambda: saved.exists() and there.PRIVATE in saved.read_text(encoding="utf-8"), within_s=2)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 59)), max_size=40))
def test_marks_are_never_ahead_of_what_was_heard(heard):
    began = datetime(2026, 11, 22, tzinfo=UTC)
    past, minutes = DiscordHistory(), count(1)
    past.begin(began)
    last: dict[int, int] = {}
    for chat, late_s in heard:
        now = began + timedelta(minutes=next(minutes))
        # Chats come out of order; one chat does not.
        message_id = max(id_at(now - timedelta(seconds=late_s)), last.get(chat, 0))
        assert past.after(chat) <= message_id
        past.note(chat, message_id)
        last[chat] = message_id
        assert past.after(chat) <= last[chat]


def test_a_clock_that_is_ahead_is_put_right_by_the_first_message():
    now = datetime(2026, 11, 22, tzinfo=UTC)
    past = DiscordHistory()
    past.begin(now + timedelta(hours=2))

    past.note(1, id_at(now))

    assert past.after(2) <= id_at(now + timedelta(seconds=1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_through_every_kind_of_break_each_message_is_heard_once_and_answered_once(discord, tmp_path, seed):
    dice = random.Random(seed)

    async def forget() -> None:
        discord.gateway.sessions.clear()
        await discord.gateway.say(INVALID, False)

    async def go_away() -> None:
        await discord.gone(gone=True)
        await asyncio.sleep(0.05)
        await discord.gone(gone=False)

    breaks = (discord.drop, forget, go_away, lambda: discord.gateway.say(RECONNECT), lambda: discord.refuse(1))
    said: list[str] = []
    for _ in range(5):
        async with live(discord, tmp_path) as life:
            for _ in range(20):
                said.append(f"word{len(said)}")
                await discord.says(said[-1], chat=dice.choice((there.GROUP, there.PRIVATE)), mention=True)
                if dice.random() < 0.2 and (broken := dice.choice(breaks)()) is not None:
                    await broken
                await asyncio.sleep(dice.random() * 0.02)
    async with live(discord, tmp_path) as life:
        await eventually(lambda: len(discord.shown()) + len(discord.shown(there.GROUP)) >= len(said))
        await life.is_up()

    told = [one.text for chat in (there.GROUP, there.PRIVATE) for one in discord.shown(chat)]
    words = [text.removeprefix("You said: ").split("\n")[0] for text in told]
    assert sorted(words) == sorted(said)
    for chat in (there.GROUP, there.PRIVATE):
        order = [int(one.text.split("word")[1].split()[0]) for one in discord.shown(chat)]
        assert order == sorted(order)


# what a message says


async def test_people_and_chats_are_named_and_the_call_to_the_bot_is_left_out(discord, tmp_path):
    async with live(discord, tmp_path) as life:
        said = f"<@{there.BOT}>, ask <@{there.STRANGER}> in <#{there.GROUP}> <:wave:123> <@&1>"
        await discord.says(said, chat=there.GROUP)
        message = await life.hears("ask")

    assert message.content == f"ask @zoe in #chat-{there.GROUP} :wave: <@&1>"


@pytest.mark.parametrize(
    ("text", "more", "heard"),
    [
        (f"<@!{there.BOT}> hi", {"mentions": [there.user(there.BOT)]}, "hi"),
        (f"<@&{there.OWN_ROLE}> hi", {}, "hi"),
        ("hi", {"is_reply": True}, "hi"),
        ("@everyone hi", {"mention_everyone": True}, None),
    ],
)
async def test_its_nickname_its_role_and_a_reply_call_it_and_everyone_is_nobody(discord, tmp_path, text, more, heard):
    async with live(discord, tmp_path) as life:
        _, _, answer = await life.asked("first", chat=there.GROUP, mention=True)
        reply = {"reply_to": answer.id} if more.pop("is_reply", False) else {}
        await discord.says(text, chat=there.GROUP, **more, **reply)
        await life.asked("after", chat=there.GROUP, mention=True)

    assert [one.content for one in life.heard] == ["first", *[heard] * (heard is not None), "after"]


async def test_bots_webhooks_edits_and_discord_itself_are_not_heard(discord, tmp_path):
    async with live(discord, tmp_path, group_policy="open") as life:
        await life.is_up()
        await discord.says("a bot", author=there.user("42"))
        await discord.says("a webhook", webhook_id="7")
        await discord.says("a pin", type=6)
        edited = await discord.says("as it was")
        await discord.gateway.tell(
            "MESSAGE_UPDATE", {**discord.world.payload(message_of(discord, edited)), "content": "edited"}
        )
        await life.asked("after")

    assert [one.content for one in life.heard] == ["as it was", "after"]


async def test_person_is_told_that_a_message_could_not_be_read(discord, tmp_path, monkeypatch):
    def broken(_: object) -> None:
        raise KeyError("content")

    async with live(discord, tmp_path) as life:
        with monkeypatch.context() as patched:
            patched.setattr("discord.Message.clean_content", property(broken))
            await discord.says("odd")
            await life.shows("I could not read your last message")
        await life.asked("hello")

    assert len(life.heard) == 1


async def test_what_is_forwarded_is_read(discord, tmp_path):
    snapshot = {
        "type": 0, "content": "the news", "embeds": [], "attachments": [], "timestamp": "2026-01-01T00:00:00+00:00",
        "edited_timestamp": None, "flags": 0, "mentions": [], "mention_roles": [],
    }  # fmt: skip
    async with live(discord, tmp_path) as life:
        life.people.admit("discord", discord.person, owner=True)
        await discord.says("", message_snapshots=[{"message": snapshot}])
        message = await life.hears("the news")

    assert message.content == "[forwarded]\nthe news"
    assert message.provenance == Provenance.PERSON, "an owner who passes it on has not written it"


async def test_a_voice_message_is_one(discord, tmp_path):
    (tmp_path / "voice-message.ogg").write_bytes(b"OggS" + bytes(64))
    async with live(discord, tmp_path) as life:
        attached = discord.rest.kept("voice-message.ogg", b"OggS" + bytes(64), "audio/ogg")
        attached |= {
            "duration_secs": 1.5,
            "waveform": "AAAA",
            "url": attached["url"].replace("http://cdn.invalid", f"{discord.url}/cdn"),
        }
        await discord.says("", attachments=[attached], flags=1 << 13)
        message = await life.hears("[voice: ")

    assert Path(message.media[0]).read_bytes().startswith(b"OggS")


async def test_a_listed_channel_lets_its_threads_speak_each_a_session_also_if_it_was_asleep(discord, tmp_path):
    discord.world.chats[there.THREAD].asleep = True
    async with live(discord, tmp_path, group_policy="allowlist", allow_channels=[there.GROUP]) as life:
        _, message, answer = await life.asked("hello", chat=there.GROUP, thread=there.THREAD, mention=True)

    assert message.session_key == f"discord:{there.GROUP}:{there.THREAD}"
    assert answer.thread_id == there.THREAD


async def test_without_the_intent_for_servers_a_server_is_still_no_private_chat(discord, tmp_path):
    async with live(discord, tmp_path, intents=37377 & ~1) as life:
        await life.is_up()
        await discord.says("let me in", sender=there.STRANGER, chat=there.GROUP, mention=True)
        await life.asked("after")

    assert discord.shown(there.GROUP) == []
    assert life.people.pending("discord") == []


# commands and buttons


async def test_discord_is_told_the_menu_once(discord, tmp_path, bot: Bot):
    menu = (*bot.menu, MenuEntry("wordy", "word " * 30))
    for _ in range(2):
        async with live(discord, tmp_path, commands=menu) as life:
            await life.is_up()
            await eventually(lambda: discord.rest.commands)
            await life.asked("hello")

    assert [command["name"] for command in discord.rest.commands] == [entry.name for entry in menu]
    assert "model" in {one["name"] for one in discord.rest.commands if one.get("options")}
    assert all(command["contexts"] == [0, 1] for command in discord.rest.commands)
    assert [method for method, _ in discord.rest.asked].count("PUT") == 1


async def test_a_chosen_command_is_heard_with_its_words_where_it_was_and_answered_to_the_person_alone(
    discord, tmp_path
):
    data = {"id": "1", "name": "model", "type": 1, "options": [{"name": "words", "type": 3, "value": "gpt-4.1"}]}
    async with live(discord, tmp_path) as life:
        await life.asked("the server is announced")
        chosen = await discord.interacts(2, data, there.GROUP)
        message = await life.hears("/model")
        answer = await eventually(lambda: discord.rest.answers.get(chosen))
        await discord.interacts(2, {"id": "1", "name": "status", "type": 1}, there.THREAD)
        in_thread = await life.hears("/status")
        life.bus.full = True
        chosen = await discord.interacts(2, {"id": "1", "name": "new", "type": 1}, there.PRIVATE)
        refused = await eventually(lambda: discord.rest.answers.get(chosen))

    assert (message.content, message.session_key) == ("/model gpt-4.1", f"discord:{there.GROUP}")
    assert in_thread.session_key == f"discord:{there.GROUP}:{there.THREAD}"
    assert answer["type"] == 4
    assert answer["data"]["flags"] == 1 << 6
    assert "try again" in refused["data"]["content"]


async def test_a_stranger_who_chooses_a_command_in_a_server_is_told_so_alone(discord, tmp_path):
    async with live(discord, tmp_path) as life:
        await life.is_up()
        data = {"id": "1", "name": "status", "type": 1}
        chosen = await discord.interacts(2, data, there.GROUP, sender=there.STRANGER)
        answer = await eventually(lambda: discord.rest.answers.get(chosen))

    assert "private bot" in answer["data"]["content"]
    assert life.heard == []
    assert discord.shown(there.GROUP) == []


async def test_a_press_is_answered_and_survives_a_restart(discord, tmp_path):
    buttons = [Button(f"b{number}", f"value {number}") for number in range(7)]
    buttons += [Button("again", "value 1"), Button("Yes", "I choose: Yes" + " " * 99)]
    async with live(discord, tmp_path, silent=True) as life:
        (shown_id,) = await life.posted(Address("discord", there.PRIVATE), "choose", buttons=tuple(buttons))
    async with live(discord, tmp_path, silent=True) as life:
        await life.is_up()
        await discord.press_button(shown_id, "b6")
        await life.hears("value 6")
        await discord.press_button(shown_id, "Yes")
        await life.hears("I choose: Yes")  # not the label alone, which may answer a question to the owner
        await eventually(lambda: len(discord.rest.answers) == 2)

    assert discord.shown()[0].buttons == [f"b{number}" for number in range(7)] + ["Yes"]
    assert [answer["type"] for answer in discord.rest.answers.values()] == [6, 6]


# what goes out


async def test_it_makes_nobodys_phone_ring_and_fetches_no_preview(discord, tmp_path):
    async with live(discord, tmp_path, silent=True) as life:
        message_id = await discord.says("hello")
        message = await life.hears("hello")
        await life.posted(message, f"@everyone @here <@{there.STRANGER}>", reply_to=message_id)
        life.post(message, "@everyone grows", kind=OutboundKind.STREAM_DELTA, turn_id="t")
        await life.shows("grows")
        (shown_id,) = await life.posted(message, "See https://a.example/?q=1")

    assert discord.rest.pinged == []
    assert message_of(discord, shown_id).flags == 1 << 2  # SUPPRESS_EMBEDS


async def test_an_answer_whose_beginning_is_there_already_is_seen_once(discord, tmp_path):
    async with live(discord, tmp_path, silent=True) as life:
        await discord.says("hello")
        message = await life.hears("hello")
        discord.rest.loses_answers = 1
        delta(life, message, "one ")
        life.answers(message, "one two")
        await life.posted(message, "next")

    assert [one.text for one in discord.shown()] == ["one two", "next"]


async def test_a_message_that_may_be_older_than_its_nonce_says_that_it_may_be_a_repeat(discord, tmp_path):
    out = OutboundMessage("discord", there.PRIVATE, "the reply")
    async with open_journal(tmp_path / "journal.db") as journal:
        await journal.add_outbound([out])
        assert out.journal_id is not None
        await journal.record_sending(out.journal_id, ())
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute("UPDATE outbound SET created_at = created_at - 130")
    async with live(discord, tmp_path, silent=True) as life:
        shown = await life.shows("the reply")

    assert "received this before" in shown.text


async def test_a_boosted_server_takes_larger_files(discord, tmp_path):
    discord.world.premium_tier = 2
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(11 << 20)
    async with live(discord, tmp_path, silent=True) as life:
        await life.is_up()
        await asyncio.sleep(0.05)  # the server is announced
        for chat in (there.GROUP, there.PRIVATE):
            await life.posted(Address("discord", chat), "", media=[str(tmp_path / "large.bin")])

    assert [one.files for one in discord.shown(there.GROUP)] == [["large.bin"]]
    assert "10" in discord.shown()[0].text
    assert discord.shown()[0].files == []


@pytest.mark.parametrize(
    ("name", "chat"),
    [
        ("#General", there.GROUP), ("general", there.GROUP), ("home #general", there.GROUP),
        ("<#12>", "12"), ("12", "12"), ("#attic", None), ("away #general", None),
    ],
)  # fmt: skip
async def test_a_channel_is_found_by_what_people_call_it(discord, tmp_path, name, chat):
    discord.world.chats[there.GROUP].name = "general"
    async with live(discord, tmp_path, commands=(MenuEntry("status", "how it is"),)) as life:
        await life.is_up()
        await eventually(lambda: discord.rest.commands)

        assert await life.channel.find(name) == chat


@pytest.mark.parametrize(("chat", "says"), [("general", "copy its ID"), ("123", "Unknown Channel")])
async def test_a_chat_that_is_none_is_told_to_the_owner(discord, tmp_path, chat, says):
    async with live(discord, tmp_path) as life:
        life.post(Address("discord", chat), "hello")
        await eventually(lambda: life.dead)

    assert says in life.dead[0]


async def test_an_answer_to_a_message_that_was_deleted_is_sent_without_a_quote(discord, tmp_path):
    async with live(discord, tmp_path, silent=True) as life:
        message_id = await discord.says("hello")
        message = await life.hears("hello")
        del discord.world.chats[there.PRIVATE].messages[message_id]
        await life.posted(message, "still", reply_to=message_id)

    assert [(one.text, one.reply_to) for one in discord.shown()] == [("still", None)]


def message_of(discord: DiscordPlatform, message_id: str) -> Message:
    return next(one.messages[message_id] for one in discord.world.chats.values() if message_id in one.messages)
