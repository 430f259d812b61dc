"""What comes attached: fetched and transcribed after Telegram was told that its message came, and paid for once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nanobot.bus.events import InboundMessage
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import LiveChannel, live
from tests.fakes.platform_telegram import ANNA, TelegramPlatform
from tests.support.eventually import eventually

OGG = b"OggS" + b"\0" * 60
MP3 = b"ID3" + b"\0" * 60
JPEG = b"\xff\xd8\xff" + b"\0" * 60
MP4 = b"\0\0\0\x18ftypmp42" + b"\0" * 60


class Words:
    """Understands so many recordings, and the rest once `may` is released."""

    def __init__(self, *fails: Exception, at_once: int = 9) -> None:
        self.heard: list[Path] = []
        self.may = asyncio.Semaphore(at_once)
        self.fails = [*fails]

    async def transcribe(self, path: Path) -> str:
        self.heard.append(path)
        await self.may.acquire()
        if self.fails:
            raise self.fails.pop(0)
        return f"words of {path.suffix}"


async def sends(telegram: TelegramPlatform, kind: str, data: bytes, **more: Any) -> str:
    told = telegram.server.file(data) | {"duration": 2, "width": 9, "height": 9}
    more[kind] = [told] if kind == "photo" else told
    return str(await telegram.server.message(ANNA, ANNA, **more))


def is_stop(message: InboundMessage) -> bool:
    return message.content == "/stop"


async def test_message_is_acknowledged_before_its_recording_is_understood(telegram, tmp_path):
    words = Words(at_once=0)
    async with live(telegram, tmp_path, silent=True, transcribe=words) as life:
        voice = await sends(telegram, "voice", OGG)
        await eventually(lambda: words.heard)
        await eventually(lambda: telegram.acknowledged(voice))
        counts, early = await life.counts(), [*life.heard]
        words.may.release()
        message = await life.hears("transcription")

    assert early == []
    assert counts.queued == 1
    assert message.content == f"[voice: {message.media[0]}]\n[transcription: words of .ogg]"


async def test_stop_goes_past_a_recording_and_other_words_wait_behind_it(telegram, tmp_path):
    words = Words(at_once=0)
    async with live(telegram, tmp_path, silent=True, transcribe=words, bypasses_lane=is_stop) as life:
        await sends(telegram, "voice", OGG)
        await telegram.says("and this?")
        await telegram.says("/stop")
        await life.hears("/stop")
        words.may.release()
        await life.hears("and this?")

    assert [one.content.split("\n")[0].split(":")[0] for one in life.heard] == ["/stop", "[voice", "and this?"]


async def test_recording_that_was_understood_before_a_crash_is_not_paid_for_again(telegram, tmp_path):
    words = Words(at_once=1)
    async with live(telegram, tmp_path, silent=True, transcribe=words) as life:
        voices = [telegram.server.file(OGG + bytes([number])) | {"duration": 2} for number in range(2)]
        for voice in voices:
            await telegram.server.message(ANNA, ANNA, media_group_id="a", voice=voice)
        await telegram.says("behind them")
        await eventually(lambda: len(words.heard) == 2 and life.bus.incomplete("telegram")[1:])
        written = await in_the_journal(life)
    words.may.release()
    async with live(telegram, tmp_path, silent=True, transcribe=words) as life:
        await life.hears("behind them")
        counts = await life.counts()

    assert written == [1, 0]
    assert words.heard.count(words.heard[0]) == 1
    assert [one.content.count("transcription") for one in life.heard] == [2, 0]
    assert (counts.received, counts.queued) == (2, 2)


async def test_channel_that_is_made_anew_goes_on_with_what_the_old_one_has_accepted(telegram, tmp_path):
    async with live(telegram, tmp_path, silent=True) as life:
        telegram.server.slow_files.clear()
        file = await sends(telegram, "document", b"data", caption="read")
        await telegram.says("behind it")
        await eventually(lambda: life.bus.incomplete("telegram")[1:] and telegram.acknowledged(file))
        anew = telegram.channel(life.bus)
        anew.attach(life.channel.services)
        await life.manager.change("telegram", anew)
        telegram.server.slow_files.set()
        await life.hears("behind it")

    assert [one.content.split("\n")[0] for one in life.heard] == ["read", "behind it"]
    assert len(life.heard[0].media) == 1


async def in_the_journal(life: LiveChannel) -> list[int]:
    """How many attachments each open message still has to get."""
    assert life.bus.journal is not None
    return [len(one.attachments) for one in await life.bus.journal.load_unsettled()]


async def test_full_disk_keeps_a_message_with_what_is_attached_waiting(telegram, tmp_path):
    async with live(telegram, tmp_path, silent=True) as life:
        telegram.server.slow_files.clear()
        await sends(telegram, "document", b"data", caption="read")
        await eventually(lambda: life.bus.incomplete("telegram"))
        life.bus.full = True
        telegram.server.slow_files.set()
        await eventually(lambda: life.bus.refused)
        heard = [*life.heard]
        life.bus.full = False
        await life.hears("read")

    assert heard == []


async def test_recording_that_breaks_who_transcribes_it_costs_its_words_only(telegram, tmp_path):
    async with live(telegram, tmp_path, silent=True, transcribe=Words(KeyError("text"))) as life:
        await sends(telegram, "voice", OGG, caption="listen")
        message = await life.hears("listen")

    assert message.content == f"listen\n[voice: {message.media[0]}]"


@pytest.mark.parametrize(
    ("kind", "data", "provenance"),
    [
        ("photo", JPEG, Provenance.PERSON),
        ("photo", JPEG + b"too large", Provenance.OWNER),
        ("document", JPEG, Provenance.PERSON),
        ("audio", MP3, Provenance.PERSON),
        ("document", MP3, Provenance.PERSON),
        ("voice", OGG, Provenance.OWNER),
        ("video", MP4, Provenance.OWNER),
        ("document", b"words", Provenance.OWNER),
    ],
)
async def test_pictures_and_audio_files_are_not_the_owners_words_and_recordings_made_there_are(
    telegram, tmp_path, kind, data, provenance
):
    telegram.server.largest_download = len(JPEG)
    async with live(telegram, tmp_path, silent=True, allow_from=[], transcribe=Words()) as life:
        await telegram.says("let me in")
        code = (await eventually(lambda: life.people.pending("telegram")))[0].code
        life.people.approve(code, owner=True)
        await sends(telegram, kind, data, caption="look")
        message = await life.hears("look")

    assert message.provenance is provenance
    assert message.content.endswith("download failed]") is (len(data) > len(JPEG))
