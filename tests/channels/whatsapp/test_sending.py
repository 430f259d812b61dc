"""What the bridge gets of the bot: texts, files, edits; and what WhatsApp does not take."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from nanobot.bus.events import Address, DeliveryFailedError
from nanobot.bus.queue import MessageBus
from nanobot.channels.whatsapp import WhatsAppChannel
from nanobot.config.channels import WhatsAppConfig
from nanobot.testing.live_channel import delta, live
from nanobot.utils.clock import FrozenClock
from tests.fakes.whatsapp import ANNA, Refusal
from tests.support.eventually import eventually

ADDRESS = Address("whatsapp", ANNA)


async def test_text_is_written_in_whatsapps_own_marks(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path) as life:
        await life.posted(
            ADDRESS, "# Plan\n\n**bold** and *italic*, ~~gone~~, `x = 1`\n\n- [a link](https://example.org)"
        )

    (post,) = whatsapp.bridge.posts
    assert post.text == "*Plan*\n\n*bold* and _italic_, ~gone~, `x = 1`\n\n- a link (https://example.org)"


async def test_a_message_to_a_number_finds_its_chat(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path) as life:
        await life.posted(Address("whatsapp", "+49 151 12345678"), "good morning")

    assert [post.chat for post in whatsapp.bridge.posts] == [ANNA]


async def test_answers_quote_only_if_the_config_says_so(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path, silent=True, reply_to_message=False) as life:
        await whatsapp.says("hello")
        message = await life.hears("hello")
        await life.posted(message, "to you", reply_to=message.message_id)

    assert [post.quoted for post in whatsapp.bridge.posts] == [None]


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

    assert len(whatsapp.bridge.in_chat(ANNA)) == 3
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

    (post,) = whatsapp.bridge.posts
    assert (post.file, post.data, post.mimetype, post.is_voice) == (name, data, mimetype, is_voice)
    assert [*(tmp_path / "outbox").iterdir()] == []


async def test_a_streamed_answer_is_edited_twenty_times_and_then_once_more(whatsapp, tmp_path):
    words = [f"w{number} " for number in range(25)]
    async with live(whatsapp, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        await whatsapp.says("hello")
        message = await life.hears("hello")
        for word in words[:21]:
            delta(life, message, word)
            await life.shows(word.strip())
        for word in words[21:]:
            delta(life, message, word)
        life.answers(message, "".join(words))
        await life.shows("w24")

    (post,) = whatsapp.bridge.posts
    assert post.edits == 21


async def test_a_streamed_answer_that_is_too_old_to_edit_is_followed_by_the_whole_one(whatsapp, tmp_path):
    clock = FrozenClock(datetime(2026, 11, 26, 12, tzinfo=UTC))
    async with live(whatsapp, tmp_path, silent=True, clock=clock) as life:
        life.adjust(delta_interval_s=0.0)
        await whatsapp.says("hello")
        message = await life.hears("hello")
        delta(life, message, "one ")
        await life.shows("one")
        clock.advance(15 * 60)
        life.channel.status.touch()
        life.answers(message, "one two")
        await life.shows("one two")

    assert [post.text.strip() for post in whatsapp.bridge.posts] == ["one", "one two"]


def test_answers_are_not_streamed_unless_the_config_says_so():
    assert not WhatsAppChannel(WhatsAppConfig(), MessageBus()).supports_streaming
    assert WhatsAppChannel(WhatsAppConfig(streaming=True), MessageBus()).supports_streaming


@pytest.mark.parametrize("code", [404, 463, 479])
async def test_what_whatsapp_never_takes_is_told_with_the_reason(whatsapp, tmp_path, code):
    whatsapp.bridge.refusals.append(Refusal(code, "not on WhatsApp"))
    async with live(whatsapp, tmp_path) as life:
        with pytest.raises(DeliveryFailedError, match="not on WhatsApp"):
            await life.posted(ADDRESS, "hello")


@pytest.mark.parametrize("code", [503, None])
async def test_what_the_bridge_could_not_send_is_sent_later(whatsapp, tmp_path, code):
    whatsapp.bridge.refusals.append(Refusal(code, "not now"))
    async with live(whatsapp, tmp_path) as life:
        await life.posted(ADDRESS, "hello")
        await eventually(lambda: not whatsapp.bridge.refusals)

    assert [post.text for post in whatsapp.bridge.posts] == ["hello"]
