"""The bridge's protocol: logins, who may write, what is acknowledged and sent, and why the channel stops."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.status import ChannelState
from nanobot.channels.whatsapp import WhatsAppChannel
from nanobot.channels.whatsapp.channel import address_of
from nanobot.cli.main import app
from nanobot.config.channels import WhatsAppConfig
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import delta, live
from nanobot.utils.clock import FrozenClock
from tests.fakes.served import RefusedError
from tests.fakes.whatsapp import ANNA, ANNA_LID, HALL, ME, ME_LID, TOKEN, ZOE
from tests.support.eventually import eventually
from tests.support.streaming import streamed


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (401, "WhatsApp has logged this device out. Run `nanobot channels login whatsapp`."),
        (403, "WhatsApp has banned this account"),
        (405, "Update nanobot"),
        (440, "Another program uses this linked device"),
    ],
)
async def test_a_session_that_whatsapp_has_ended_says_what_to_do(whatsapp, tmp_path, code, told):
    async with live(whatsapp, tmp_path) as life:
        await life.asked("hello")
        await whatsapp.tell({"type": "logged_out", "code": code})
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED and not whatsapp.lines)

        assert told in life.channel.status.last_error
        if code == 440:  # one that was replaced never connects again: the supervisor retries
            with pytest.raises(ChannelSetupError, match="440"):
                await life.channel.start()
            assert whatsapp.lines == []


async def test_a_bridge_that_shows_a_qr_code_is_not_linked(whatsapp, tmp_path):
    whatsapp.is_linked = False
    async with live(whatsapp, tmp_path) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert "is not linked yet. Run `nanobot channels login whatsapp`" in life.channel.status.last_error


async def test_messages_wait_while_the_bridge_is_not_connected_to_whatsapp(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path) as life:
        await life.asked("hello")
        whatsapp.is_connected = False
        await whatsapp.tell_status()
        await eventually(lambda: life.channel.status.state is ChannelState.DOWN)
        receipt = life.post(Address("whatsapp", ANNA), "news")
        await eventually(lambda: not life.bus.outbound_size)
        waited = not receipt.settled and len(whatsapp.posts) == 1
        whatsapp.is_connected = True
        await whatsapp.tell_status()
        await life.shows("news")

    assert waited


@asynccontextmanager
async def logging_in(whatsapp, **settings: Any) -> AsyncIterator[asyncio.Task[bool]]:
    """A login that waits for what the bridge says."""
    login = asyncio.create_task(whatsapp.channel(MessageBus(), **settings).login())
    await eventually(lambda: whatsapp.lines and whatsapp.lines[0].session)
    yield login


async def test_login_says_that_whatsapp_cannot_be_reached(whatsapp, capsys):
    whatsapp.is_connected = False
    async with logging_in(whatsapp) as login:
        for _ in range(3):
            await whatsapp.tell_status()
        whatsapp.is_connected = True
        await whatsapp.tell_status()

        assert await login
    assert capsys.readouterr().out.count("web.whatsapp.com cannot be reached yet") == 1


async def test_login_links_an_account_anew_that_was_logged_out_meanwhile(whatsapp):
    whatsapp.is_linked = False
    async with logging_in(whatsapp) as login:
        (first,) = whatsapp.lines
        await whatsapp.tell({"type": "logged_out", "code": 401})
        await eventually(lambda: whatsapp.lines and whatsapp.lines[-1] is not first and whatsapp.lines[-1].session)
        whatsapp.is_linked = True
        await whatsapp.tell_status()

        assert await login


async def test_login_says_why_whatsapp_does_not_let_it_in(whatsapp):
    whatsapp.is_linked = False
    async with logging_in(whatsapp, phone="1") as login:
        await whatsapp.tell({"type": "logged_out", "code": 405})

        with pytest.raises(ChannelSetupError, match="Update nanobot"):
            await login


@pytest.mark.parametrize(
    ("sender", "more", "section", "known"),
    [
        (ANNA, {"lid": ANNA_LID}, {"allow_from": [ANNA_LID]}, True),
        (ANNA_LID, {"pn": ANNA}, {"allow_from": [ANNA_LID]}, True),
        (ANNA_LID, {}, {"lid_mappings": {ANNA_LID.partition("@")[0]: "4915112345678"}}, True),
        (ANNA_LID, {}, {"allow_from": [ANNA_LID]}, False),
    ],
)
async def test_a_person_is_one_person_by_number_and_by_lid(whatsapp, tmp_path, sender, more, section, known):
    async with live(whatsapp, tmp_path, silent=True, **section) as life:
        await whatsapp.writes("hello", sender=sender, **more)
        message = await life.hears("hello")

    sender_id, chat = ("+4915112345678", ANNA) if known else (ANNA_LID, ANNA_LID)
    assert (message.sender_id, message.chat_id, message.session_key) == (sender_id, chat, f"whatsapp:{chat}")


@pytest.mark.parametrize(
    ("section", "is_taken"),
    [
        ({}, False),
        ({"allow_from": ["+4930123456"]}, True),
        ({"allow_from": ["+4930123456"], "self_chat": False}, False),
    ],
)
async def test_what_the_account_writes_to_itself_is_for_the_bot_if_its_number_is_allowed(
    whatsapp, tmp_path, section, is_taken
):
    async with live(whatsapp, tmp_path, silent=True, **section) as life:
        await life.is_up()
        note = await whatsapp.writes("a note", sender=ME, fromMe=True)
        await eventually(lambda: whatsapp.acknowledged(note))

    assert [message.content for message in life.heard] == ["a note"] * is_taken
    assert whatsapp.posts == []


async def test_strangers_get_no_code_from_an_account_that_is_a_persons_own(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path, allow_from=["+4930123456"]) as life:
        await life.is_up()
        greeting = await whatsapp.writes("hi, how are you?", sender=ZOE)
        await eventually(lambda: whatsapp.acknowledged(greeting))
        await whatsapp.writes("a note", sender=ME, fromMe=True)
        await life.shows("You said: a note", ME)

    assert whatsapp.in_chat(ZOE) == []
    assert life.people.pending("whatsapp") == []


async def test_quotes_of_the_bot_and_voice_messages_are_read(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path, silent=True) as life:
        life.people.admit("whatsapp", whatsapp.person, owner=True)
        await whatsapp.writes("and yours?", quoted={"id": "y", "sender": ME_LID, "text": "mine"})
        quoting = await life.hears("and yours?")
        await whatsapp.writes(
            "", media=[whatsapp.put_file("v", b"OggS sound", kind="audio", ptt=True, mimetype="audio/ogg")]
        )
        await life.hears("[voice: ")

    assert quoting.content == "[in reply to you]\n> mine\nand yours?"
    assert quoting.provenance is Provenance.OWNER


@pytest.mark.parametrize("path", ["", "/etc/hostname", "{folder}/../../../etc/hostname"])
async def test_a_file_elsewhere_on_this_machine_is_not_read(whatsapp, tmp_path, path, caplog):
    file = {"path": path.format(folder=tmp_path), "kind": "document", "name": "plan.pdf"}
    async with live(whatsapp, tmp_path, silent=True) as life:
        await whatsapp.writes("", media=[file])
        await life.hears("[file: download failed]")

    assert "the bridge could not download it" in caplog.text


async def test_read_receipts_are_sent_if_the_config_says_so(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path) as life:
        await life.asked("before")
    assert whatsapp.reads == []

    async with live(whatsapp, tmp_path, send_read_receipts=True) as life:
        message_id, _, _ = await life.asked("after")
        await eventually(lambda: whatsapp.reads)

    assert whatsapp.reads == [{"type": "read", "ids": [message_id], "to": ANNA, "sender": ANNA}]


async def test_a_bridge_of_an_earlier_release_works(whatsapp, tmp_path, monkeypatch):
    monkeypatch.setattr("nanobot.channels.whatsapp.bridge._SILENT_S", 0.05)
    whatsapp.version = None
    async with live(whatsapp, tmp_path) as life:
        await life.is_up()
        await whatsapp.tell(
            {
                "type": "message",
                "id": "1",
                "sender": ANNA_LID,
                "pn": ANNA,
                "content": "hello",
                "timestamp": 1,
                "isGroup": False,
            }
        )
        await life.shows("You said: hello")

    assert [message.session_key for message in life.heard] == [f"whatsapp:{ANNA}"]
    assert {frame["type"] for frame in whatsapp.calls} == {"send"}


@pytest.mark.parametrize(
    ("person", "address"),
    [
        ("+49 151 12345678", ANNA),
        ("4915112345678", ANNA),
        ("4915112345678:7@s.whatsapp.net", ANNA),
        (ANNA_LID, ANNA_LID),
        (HALL, HALL),
        ("Anna", None),
        ("", None),
    ],
)
def test_a_chat_is_found_however_its_number_is_written(person, address):
    assert address_of(person) == address


ADDRESS = Address("whatsapp", ANNA)


async def test_text_is_written_in_whatsapps_own_marks(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path) as life:
        await life.posted(
            ADDRESS, "# Plan\n\n**bold** and *italic*, ~~gone~~, `x = 1`\n\n- [a link](https://example.org)"
        )

    (post,) = whatsapp.posts
    assert post.text == "*Plan*\n\n*bold* and _italic_, ~gone~, `x = 1`\n\n- a link (https://example.org)"


async def test_a_message_to_a_number_finds_its_chat(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path) as life:
        await life.posted(Address("whatsapp", "+49 151 12345678"), "good morning")

    assert [post.chat for post in whatsapp.posts] == [ANNA]


async def test_answers_quote_only_if_the_config_says_so(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path, silent=True, reply_to_message=False) as life:
        message = await life.receives("hello")
        await life.posted(message, "to you", reply_to=message.message_id)

    assert [post.quoted for post in whatsapp.posts] == [None]


async def test_a_chat_gets_one_message_a_second(whatsapp, tmp_path, monkeypatch):
    pauses = []

    async def sleep(delay: float) -> None:
        pauses.append(delay)

    channels_own = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})  # others sleep as they do
    async with live(whatsapp, tmp_path, clock=FrozenClock(datetime(2026, 11, 22, tzinfo=UTC))) as life:
        life.adjust(pause_s=1.0)
        await life.is_up()
        monkeypatch.setattr("nanobot.channels.whatsapp.channel.asyncio", channels_own)
        await life.posted(ADDRESS, "word " * 2000)
        await life.posted(Address("whatsapp", "+4930999"), "hi")

    assert len(whatsapp.in_chat(ANNA)) == 3
    assert [pause for pause in pauses if pause] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "data", "mimetype", "is_voice"),
    [
        ("p.png", b"\x89PNG\r\n\x1a\n", "image/png", False),
        ("a.mp4", b"....ftypmp42", "video/mp4", False),
        ("v.ogg", b"OggS", "audio/ogg; codecs=opus", True),
        ("a.md", b"# Plan", "text/markdown", False),
        ("a.strange", b"???", "application/octet-stream", False),
    ],
)
async def test_files_are_sent_as_what_they_are(whatsapp, tmp_path, name, data, mimetype, is_voice):
    (tmp_path / name).write_bytes(data)
    async with live(whatsapp, tmp_path) as life:
        await life.posted(ADDRESS, "", media=[str(tmp_path / name)])

    (post,) = whatsapp.posts
    assert (post.file, post.data, post.mimetype, post.is_voice) == (name, data, mimetype, is_voice)
    assert [*(tmp_path / "outbox").iterdir()] == []


async def test_a_streamed_answer_is_edited_twenty_times_and_then_once_more(whatsapp, tmp_path):
    words = [f"w{number} " for number in range(25)]
    async with live(whatsapp, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        message = await life.receives("hello")
        for word in words[:21]:
            delta(life, message, word)
            await life.shows(word.strip())
        for word in words[21:]:
            delta(life, message, word)
        life.answers(message, "".join(words))
        await life.shows("w24")

    (post,) = whatsapp.posts
    assert post.edits == 21


async def test_a_streamed_answer_that_is_too_old_to_edit_is_followed_by_the_whole_one(whatsapp, tmp_path):
    clock = FrozenClock(datetime(2026, 11, 26, 12, tzinfo=UTC))
    async with live(whatsapp, tmp_path, silent=True, clock=clock) as life:
        message = await streamed(life, "one ")
        clock.advance(15 * 60)
        life.channel.status.touch()
        life.answers(message, "one two")
        await life.shows("one two")

    assert [post.text.strip() for post in whatsapp.posts] == ["one", "one two"]


def test_answers_are_not_streamed_unless_the_config_says_so():
    assert not WhatsAppChannel(WhatsAppConfig(), MessageBus()).supports_streaming
    assert WhatsAppChannel(WhatsAppConfig(streaming=True), MessageBus()).supports_streaming


@pytest.mark.parametrize("code", [503, None])
async def test_what_the_bridge_could_not_send_is_sent_later(whatsapp, tmp_path, code):
    whatsapp.refusals.append(RefusedError(code or 0, "not now"))
    async with live(whatsapp, tmp_path) as life:
        await life.posted(ADDRESS, "hello")
        await eventually(lambda: not whatsapp.refusals)

    assert [post.text for post in whatsapp.posts] == ["hello"]


async def command(*words: str, answers: str = "") -> Result:
    """A command of the terminal, while the bridge runs in this loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["channels", "login", "whatsapp", *words], input=answers)


def section() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path.home() / ".nanobot" / "config.json").read_text())["channels"]["whatsapp"]
    return found


@pytest.fixture
def settings(whatsapp) -> dict[str, Any]:
    """The section of the config before the setup."""
    own = {"bridgeManaged": False, "bridgeUrl": whatsapp.url, "bridgeToken": TOKEN}
    folder = Path.home() / ".nanobot"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"channels": {"whatsapp": own}}))
    return own


async def test_the_setup_saves_nothing_before_the_account_is_linked(whatsapp, settings):
    whatsapp.is_linked = False
    setup = asyncio.create_task(command(answers="+4915112345678\n"))
    await eventually(lambda: any(line.session for line in whatsapp.lines))
    before = section()
    whatsapp.is_linked = True
    await whatsapp.tell_status()
    result = await setup

    assert result.exit_code == 0, result.output
    assert before == settings
    assert section() == settings | {"enabled": True, "groupPolicy": "mention"}
    assert json.loads((Path.home() / ".nanobot" / "pairing.json").read_text())["owners"] == {
        "whatsapp": ["+4915112345678"]
    }
    assert all(text in result.stdout for text in ("Scan this", "█", "Linked as +4930123456."))
    assert "Write to your bot on WhatsApp" in result.stdout


async def test_a_number_is_for_this_login_and_is_not_saved(whatsapp, settings):
    whatsapp.is_linked = False
    setup = asyncio.create_task(command("--phone", "+49 30 123456", answers="\n"))
    await eventually(lambda: whatsapp.calls)
    await whatsapp.tell({"type": "status", "status": "connected"})
    result = await setup

    assert result.exit_code == 0, result.output
    assert "\n  ABCD-EFGH\n" in result.stdout
    assert "Scan" not in result.stdout
    assert whatsapp.calls == [{"type": "pair", "phone": "4930123456"}]
    assert "phone" not in section()


async def test_an_account_that_is_set_up_is_tried(whatsapp, settings):
    assert (await command(answers="\n")).exit_code == 0

    result = await command()

    assert result.exit_code == 0, result.output
    assert "whatsapp is configured and its credentials work." in result.stdout
