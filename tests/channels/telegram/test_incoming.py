"""What people say to a bot, whether it is meant for it, and what comes attached: fetched and transcribed after Telegram
was told that its message came, and paid for once.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nanobot.bus.events import MenuEntry
from nanobot.bus.queue import MessageBus
from nanobot.channels.telegram import TelegramChannel
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import LiveChannel, live
from tests.fakes.platform_telegram import ANNA, HALL, TOPIC, ZOE, TelegramPlatform
from tests.fakes.telegram import BOT, Json
from tests.support.eventually import eventually


def user(number: int, name: str, *, bot: bool = False) -> Json:
    return {"id": number, "is_bot": bot, "first_name": name}


def origin(kind: str, **more: Any) -> Json:
    return {"type": kind, "date": 1, **more}


NANO = f"@{BOT['username']}"
NEWS: Json = {"id": -1007, "type": "channel", "title": "News"}
GROUP: Json = {"id": HALL, "type": "supergroup", "title": "Hall"}
HOME: Json = {"id": ANNA, "type": "private"}
IN_HALL: Json = {"message_id": 1, "date": 1, "chat": GROUP}
IN_TOPIC: Json = {"is_topic_message": True, "message_thread_id": TOPIC}
TOPIC_OF_BOT: Json = IN_HALL | {"from": BOT, "forum_topic_created": {"name": "t", "icon_color": 1}}
AT_HOME: Json = {"message_id": 1, "date": 1, "chat": HOME}
OF_ZOE: Json = AT_HOME | {"text": "a\nb", "from": user(ZOE, "Zoe")}
OF_ANNA: Json = AT_HOME | {"text": "mine", "from": user(ANNA, "Anna")}
OF_US: Json = AT_HOME | {"text": "done", "from": BOT}
ZOES: Json = origin("user", sender_user=user(ZOE, "Zoe"))
OGG = b"OggS" + b"\0" * 60
JPEG = b"\xff\xd8\xff" + b"\0" * 60
MP3 = b"ID3" + b"\0" * 60
MP4 = b"\0\0\0\x18ftypmp42" + b"\0" * 60
STICKER: Json = {
    "file_id": "S", "file_unique_id": "S", "type": "regular", "width": 1, "height": 1, "is_animated": True,
    "is_video": False, "emoji": "😀",
}  # fmt: skip
LINKS: list[Json] = [
    {"type": "text_link", "offset": 4, "length": 4, "url": "https://a.example"},
    {"type": "text_link", "offset": 9, "length": 2, "url": "https://b.example"},
]
PLACE: Json = {"latitude": 52.5, "longitude": 13.4}
POLL: Json = {
    "id": "1", "question": "Tea?", "total_voter_count": 0, "is_closed": False, "is_anonymous": True, "type": "regular",
    "options": [{"text": one, "voter_count": 0, "persistent_id": one} for one in ("yes", "no")],
    "allows_multiple_answers": False, "allows_revoting": False, "members_only": False,
}  # fmt: skip


async def test_a_sender_is_a_number_and_a_name_that_only_counts_where_the_owner_wrote_it(telegram, tmp_path):
    telegram.server.people[ANNA]["username"] = "anna"
    async with live(telegram, tmp_path, allow_from=["@anna"]) as life:
        _, message, _ = await life.asked("hello")

    assert message.sender_id == f"{ANNA}|anna"


@pytest.mark.parametrize(
    ("text", "more", "heard"),
    [
        (f"{NANO} hello", {}, "hello"),
        (f"{NANO.upper()}, hello", {}, "hello"),
        (f"what does {NANO} say?", {}, f"what does {NANO} say?"),
        (f"/status{NANO}", {}, f"/status{NANO}"),
        (f"{NANO} /status", {}, "/status"),
        ("/status", {}, "/status"),
        ("hey you", {"entities": [{"type": "text_mention", "offset": 4, "length": 3, "user": BOT}]}, "hey you"),
        ("and now?", {"reply_to_message": IN_HALL | {"from": BOT}}, "and now?"),
        ("hello all", {}, None),
        ("/weather", {}, None),
        ("/status@another_bot", {}, None),
        (f"mail me: me{NANO}.example", {}, None),
        ("in a topic that the bot made", IN_TOPIC | {"reply_to_message": TOPIC_OF_BOT}, None),
    ],
)
async def test_in_a_group_it_hears_what_is_meant_for_it(telegram, tmp_path, text, more, heard):
    menu = (MenuEntry("status", "how it is"),)
    async with live(telegram, tmp_path, silent=True, commands=menu) as life:
        await telegram.server.message(HALL, ANNA, text, **more)
        await telegram.says("after")
        await life.hears("after")

    assert [one.content for one in life.heard[:-1]] == ([heard] if heard else [])


async def test_where_everything_is_heard_a_command_for_another_bot_and_members_who_come_are_not(telegram, tmp_path):
    async with live(telegram, tmp_path, silent=True, group_policy="open") as life:
        await telegram.server.message(HALL, ANNA, "/status@another_bot")
        await telegram.server.message(HALL, ANNA, new_chat_members=[telegram.server.people[ZOE]])
        await telegram.server.message(HALL, ANNA, "chatter")
        await life.hears("chatter")

    assert len(life.heard) == 1


@pytest.mark.parametrize(
    ("more", "sender"),
    [
        ({"from": user(1087968824, "Group", bot=True), "sender_chat": GROUP}, str(HALL)),
        ({"from": user(136817688, "Channel", bot=True), "sender_chat": NEWS}, str(NEWS["id"])),
        ({"from": user(777000, "Telegram"), "sender_chat": NEWS, "is_automatic_forward": True}, None),
        ({"from": user(99, "Other", bot=True)}, None),
        ({}, None),
    ],
    ids=["anonymous admin", "a channel in the group", "a channel's post", "another bot", "nobody"],
)
async def test_who_is_no_person_is_known_by_what_vouches_for_them(telegram, tmp_path, more, sender):
    async with live(telegram, tmp_path, silent=True, allow_from=[str(ANNA), str(HALL)]) as life:
        await telegram.server.message(HALL, None, f"{NANO} hello", **more)
        await telegram.says("after")
        await life.hears("after")

    assert [one.sender_id for one in life.heard[:-1]] == ([sender] if sender else [])


@pytest.mark.parametrize(
    ("more", "words", "own"),
    [
        ({"forward_origin": origin("user", sender_user=user(ZOE, "Zoe]"))}, "[forwarded from Zoe]\nlook", False),
        ({"forward_origin": origin("user", sender_user=user(ANNA, "Anna"))}, "[forwarded from Anna]\nlook", False),
        ({"forward_origin": origin("hidden_user", sender_user_name="Max")}, "[forwarded from Max]\nlook", False),
        ({"forward_origin": origin("channel", message_id=5, chat=NEWS)}, "[forwarded from News]\nlook", False),
        ({"forward_origin": origin("chat", sender_chat=GROUP)}, "[forwarded from Hall]\nlook", False),
        ({"reply_to_message": OF_ZOE}, "[in reply to Zoe]\n> a\n> b\nlook", False),
        ({"reply_to_message": OF_ZOE, "quote": {"text": "b", "position": 2}}, "[in reply to Zoe]\n> b\nlook", False),
        ({"reply_to_message": OF_US}, "[in reply to you]\n> done\nlook", True),
        ({"reply_to_message": OF_ANNA | {"forward_origin": ZOES}}, "[in reply to Anna]\n> mine\nlook", False),
        ({"via_bot": user(98, "Gif", bot=True)}, "look", False),
        ({}, "look", True),
    ],
)
async def test_words_of_others_are_marked_and_never_count_as_the_owners(telegram, tmp_path, more, words, own):
    async with live(telegram, tmp_path, silent=True, allow_from=[]) as life:
        life.people.admit("telegram", str(ANNA), owner=True)
        await telegram.server.message(ANNA, ANNA, "look", **more)
        message = await life.hears("look")

    assert message.content == words
    assert message.provenance is (Provenance.OWNER if own else Provenance.PERSON)


@pytest.mark.parametrize("command", ["/goal ship it", "/approve 7", "/start", f"/status{NANO}"])
async def test_forwarded_message_is_never_a_command_nor_the_owners_words(telegram, tmp_path, command):
    menu = (MenuEntry("goal", "work at it"), MenuEntry("status", "how it is"))
    async with live(telegram, tmp_path, silent=True, allow_from=[], commands=menu) as life:
        life.people.admit("telegram", str(ANNA), owner=True)
        await telegram.server.message(ANNA, ANNA, command, forward_origin=ZOES)
        message = await life.hears(command)

    assert message.content == f"[forwarded from Zoe]\n{command}"
    assert message.provenance is Provenance.PERSON


# attachments


async def test_an_album_whose_parts_come_one_by_one_is_one_message(tmp_path):
    class Patient(TelegramPlatform):
        def channel(self, bus: MessageBus, **settings: Any) -> TelegramChannel:
            channel = super().channel(bus, **settings)
            channel.album_s = 0.5
            return channel

    async def part(telegram: TelegramPlatform, number: int, **more: Any) -> None:
        photo = [telegram.server.file(JPEG + bytes([number])) | {"width": 9, "height": 9}]
        await telegram.server.message(ANNA, ANNA, media_group_id="a", photo=photo, **more)

    (folder := tmp_path / "platform").mkdir()
    async with Patient(folder).open() as telegram, live(telegram, tmp_path, silent=True) as life:
        await life.is_up()
        await telegram.server.message(HALL, ANNA, f"{NANO} before")
        await part(telegram, 1, caption="our trip")
        await life.hears("before")  # so the first part was fetched, too
        polls = telegram.server.polls
        await telegram.server.message(HALL, ANNA, f"{NANO} between")
        await part(telegram, 2)
        await eventually(lambda: telegram.server.polls > polls)
        await part(telegram, 3)
        await life.hears("between")
        await life.hears("our trip")

    assert [len(one.media) for one in life.heard if "our trip" in one.content] == [3]
    assert len(life.heard) == 3


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"text": "😀 [this or", "entities": LINKS}, "😀 [this (https://a.example) or (https://b.example)"),
        ({"text": "/start from-a-link"}, "/start"),
        ({"sticker": STICKER}, "[sticker 😀]"),
        ({"location": PLACE}, "[location: 52.5, 13.4]"),
        (
            {"location": PLACE, "venue": {"location": PLACE, "title": "Café", "address": "1 Rd"}},
            "[place: Café, 1 Rd; 52.5, 13.4]",
        ),
        ({"contact": {"phone_number": "+491", "first_name": "Max"}}, "[contact: Max +491]"),
        ({"poll": POLL}, "[poll: Tea? (yes / no)]"),
        ({"dice": {"emoji": "🎲", "value": 4}}, "[🎲 4]"),
        ({"story": {"chat": NEWS, "id": 1}}, "[a message of a kind that bots cannot read]"),
    ],
)
async def test_what_is_more_than_text_is_said_in_words(telegram, tmp_path, more, words):
    async with live(telegram, tmp_path, silent=True) as life:
        await telegram.server.message(ANNA, ANNA, **more)
        message = await life.hears(words[0])

    assert message.content == words


async def test_a_bot_api_server_of_ones_own_may_say_where_a_file_lies(telegram, tmp_path):
    (tmp_path / "here.pdf").write_bytes(b"%PDF-1.7 and more")
    telegram.server.local_path = tmp_path / "here.pdf"
    async with live(telegram, tmp_path, silent=True) as life:
        await telegram.server.message(ANNA, ANNA, caption="read", document=telegram.server.file(b"?"))
        message = await life.hears("read")

    assert Path(message.media[0]).read_bytes() == b"%PDF-1.7 and more"


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


async def test_message_is_acknowledged_before_its_recording_is_understood_and_only_a_stop_goes_past_it(
    telegram, tmp_path
):
    words, is_stop = Words(at_once=0), lambda message: message.content == "/stop"
    async with live(telegram, tmp_path, silent=True, transcribe=words, bypasses_lane=is_stop) as life:
        voice = await sends(telegram, "voice", OGG)
        await eventually(lambda: words.heard)
        await eventually(lambda: telegram.acknowledged(voice))
        counts, early = await life.counts(), [*life.heard]
        await telegram.says("and this?")
        await telegram.says("/stop")
        await life.hears("/stop")
        words.may.release()
        await life.hears("and this?")

    _, message, _ = life.heard
    assert early == []
    assert counts.queued == 1
    assert [one.content.split(":")[0] for one in life.heard] == ["/stop", "[voice", "and this?"]
    assert message.content == f"[voice: {message.media[0]}]\n[transcription: words of .ogg]"


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
        life.people.admit("telegram", str(ANNA), owner=True)
        await sends(telegram, kind, data, caption="look")
        message = await life.hears("look")

    assert message.provenance is provenance
    assert message.content.endswith("download failed]") is (len(data) > len(JPEG))
