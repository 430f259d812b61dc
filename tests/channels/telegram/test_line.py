"""What a bot sends: as what it is, where the chat is today, and what Telegram refuses."""

import pytest

from nanobot.agent.command import parse_command
from nanobot.bus.events import Address, Button, DeliveryFailedError, OutboundKind
from nanobot.bus.queue import MessageBus
from nanobot.testing.live_channel import delta, live
from tests.fakes.platform_telegram import ANNA, HALL, ZOE
from tests.fakes.telegram import BLOCKED, BOT, bad
from tests.support.eventually import eventually

NANO = f"@{BOT['username']}"
OGG = b"OggS" + b"\0" * 60


def home(chat: int = ANNA) -> Address:
    return Address("telegram", str(chat))


async def test_looks_travel_as_entities_and_where_they_are_refused_the_words_go_out(telegram, tmp_path):
    async with live(telegram, tmp_path) as life:
        await life.posted(home(), "some **bold** 👩‍👩‍👧 and `code`")
        telegram.server.faults.append(bad("can't parse entities: unsupported start tag"))
        await life.posted(home(), "again **bold**")

    first, second = (one.json for one in telegram.server.shown(ANNA))
    assert first["text"] == "some bold 👩‍👩‍👧 and code"
    assert [(one["type"], one["offset"], one["length"]) for one in first["entities"]] == [
        ("bold", 5, 4),
        ("code", 23, 4),
    ]
    assert (second["text"], second["entities"]) == ("again bold", [])


async def test_a_growing_answer_fetches_no_preview_and_may_say_already_what_it_says(telegram, tmp_path):
    async with live(telegram, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        await telegram.says("hello")
        message = await life.hears("hello")
        delta(life, message, "See https://a.example/?q=1")
        await life.shows("See https://a.example/?q=1")
        delta(life, message, " and")
        await life.shows("?q=1 and")
        telegram.server.faults.append(bad("message is not modified: specified new message content..."))
        life.answers(message, "See https://a.example/?q=1 and more")
        await life.posted(message, "next")

    assert [one.text for one in telegram.shown()] == ["See https://a.example/?q=1 and", "next"]
    assert life.dead == []
    sent = {name: told.get("link_preview_options") for name, told in telegram.server.asked if "essage" in name}
    assert sent["sendMessage"] == sent["editMessageText"] == {"is_disabled": True}


async def test_a_growing_answer_rings_and_quotes_once_and_progress_is_silent(telegram, tmp_path):
    async with live(telegram, tmp_path, silent=True) as life:
        number = await telegram.says("hello")
        message = await life.hears("hello")
        await life.is_up()
        life.post(message, "reading", kind=OutboundKind.PROGRESS)
        await life.shows("reading")
        delta_kind = {"kind": OutboundKind.STREAM_DELTA, "turn_id": "t", "reply_to": message.message_id}
        life.post(message, "one", **delta_kind)
        shown = await life.shows("one")
    async with live(telegram, tmp_path, silent=True, reply_to_message=False) as life:
        await life.posted(message, "to nobody", reply_to=message.message_id)
        unquoted = await life.shows("to nobody")

    assert unquoted.reply_to is None
    assert [one.silent for one in telegram.server.shown(ANNA)][:2] == [True, False]
    assert shown.reply_to == number


async def test_a_group_is_shown_a_growing_answer_less_often(telegram):
    channel = telegram.channel(MessageBus())

    assert channel.delta_pause_s(str(HALL)) >= 3 > channel.delta_pause_s(str(ANNA))


@pytest.mark.parametrize(
    ("refusal", "said"),
    [(BLOCKED, "blocked by the user"), (bad("chat not found"), "hat not found"), (bad("TOPIC_CLOSED"), "opic_closed")],
)
async def test_what_telegram_never_takes_is_given_up_at_once(telegram, tmp_path, refusal, said):
    async with live(telegram, tmp_path) as life:
        await life.is_up()
        telegram.server.faults.append(refusal)
        with pytest.raises(DeliveryFailedError, match=said):
            await life.posted(home(), "lost")

    assert telegram.shown() == []


async def test_the_menu_has_commands_that_are_known(telegram, tmp_path, bot):
    async with live(telegram, tmp_path, commands=bot.menu, silent=True) as life:
        await eventually(lambda: telegram.server.commands)
        await telegram.says("/dream_log 3", chat=HALL)  # Telegram spells no dashes
        message = await life.hears("/dream")

    assert message.content == "/dream-log 3"
    polls = [params for method, params in telegram.server.asked if method == "getUpdates"]
    assert all(params["allowed_updates"] == ["message", "callback_query"] for params in polls)  # no edits of people
    named = [one["command"] for one in telegram.server.commands]
    assert named == [entry.name.replace("-", "_") for entry in bot.menu]
    for name in named:
        assert parse_command(f"/{name}@{BOT['username']}") is not None
        assert "There is no command" not in await bot.say(f"/{name.replace('_', '-')}")


# files


@pytest.mark.parametrize(
    ("name", "data", "method"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n" + b"\0" * 60, "sendPhoto"),
        ("a.jpg", b"no picture at all", "sendDocument"),
        ("a.ogg", OGG, "sendVoice"),
        ("a.mp3", b"ID3" + b"\0" * 60, "sendAudio"),
        ("a.mp4", b"\0\0\0\0ftypisom" + b"\0" * 60, "sendVideo"),
        ("a.gif", b"GIF89a" + b"\0" * 60, "sendAnimation"),
        ("a.pdf", b"%PDF-1.7", "sendDocument"),
        ("https://example.org/cat.png", b"", "sendPhoto"),
    ],
)
async def test_a_file_goes_out_as_what_it_is_and_an_address_is_telegrams_to_fetch(
    telegram, tmp_path, name, data, method
):
    if data:
        (tmp_path / name).write_bytes(data)
    async with live(telegram, tmp_path) as life:
        await life.posted(home(), "", media=[str(tmp_path / name) if data else name])

    (posted,) = telegram.server.shown(ANNA)
    assert (posted.method, posted.filename) == (method, name)


# buttons


@pytest.mark.parametrize(
    ("labels", "rows"),
    [
        (["Done", "Snooze 10 min", "Tomorrow"], [["Done", "Snooze 10 min", "Tomorrow"]]),
        (["What can you do?", "Set a reminder", "Commands"], [["What can you do?"], ["Set a reminder"], ["Commands"]]),
        (["1", "2", "3", "4", "5"], [["1"], ["2"], ["3"], ["4"], ["5"]]),
    ],
    ids=["short", "long", "many"],
)
async def test_short_buttons_are_one_row_and_long_ones_a_row_each(telegram, tmp_path, labels, rows):
    async with live(telegram, tmp_path) as life:
        await life.posted(home(), "choose", buttons=tuple(Button(label, label) for label in labels))

    (posted,) = telegram.server.posted.values()
    keyboard = posted.json["reply_markup"]["inline_keyboard"]
    assert [[button["text"] for button in row] for row in keyboard] == rows


async def test_a_button_can_be_pressed_once_and_is_gone_then_and_by_no_stranger(telegram, tmp_path):
    async with live(telegram, tmp_path, silent=True) as life:
        (in_hall,) = await life.posted(home(HALL), "sure?", buttons=(Button("Yes", "do it"),))
        await telegram.server.press(int(in_hall), "Yes", ZOE)
        await eventually(lambda: telegram.server.answered)
        telegram.server.answered.clear()
        (shown_id,) = await life.posted(home(), "sure?", buttons=(Button("Yes", "do it"), Button("No", "leave it")))
        posted = telegram.server.posted[int(shown_id)]
        before = dict(posted.json)
        await telegram.press_button(shown_id, "Yes")
        await life.hears("do it")
        await eventually(lambda: "reply_markup" not in posted.json)
        posted.json |= before  # another phone still shows them
        await telegram.press_button(shown_id, "No")
        await eventually(lambda: len(telegram.server.answered) == 2)

    assert [one.buttons for one in telegram.shown(telegram.group)] == [["Yes"]]
    assert [one.content for one in life.heard] == ["do it"]
    assert ["text" in one for one in telegram.server.answered] == [False, True]


async def test_a_value_longer_than_a_button_carries_gives_way_to_the_label_which_answers_no_question(
    telegram, tmp_path
):
    buttons = (Button("No", "no"), Button("/approve 1", "I choose: /approve 1" + " " * 99), Button("#", "#1"))
    async with live(telegram, tmp_path) as life:
        shown = [(await life.posted(home(), "which?", buttons=buttons))[0] for _ in range(2)]
    async with live(telegram, tmp_path, silent=True) as life:
        await telegram.press_button(shown[0], "/approve 1")
        await telegram.press_button(shown[1], "#")
        await life.hears("I choose: #")

    assert [one.content for one in life.heard] == ["I choose: /approve 1", "I choose: #"]


# a group that becomes a supergroup


async def test_a_group_that_moved_is_answered_where_it_is_and_keeps_its_session(telegram, tmp_path):
    old, new = -55, HALL
    telegram.server.chats[old] = {"id": old, "type": "group", "title": "Hall"}
    async with live(telegram, tmp_path, allow_from=[str(old)], silent=True) as life:
        await telegram.server.message(old, ZOE, f"{NANO} before")
        before = await life.hears("before")
        telegram.server.moved[old] = new
        await life.posted(before, "answer")
        await telegram.server.message(new, ZOE, f"{NANO} after")
        after = await life.hears("after")
    async with live(telegram, tmp_path, silent=True) as life:
        await life.posted(before, "much later")

    assert [one.text for one in telegram.shown(telegram.group)] == ["answer", "much later"]
    assert after.session_key == before.session_key
    assert after.chat_id == str(new)


async def test_a_group_may_say_itself_that_it_moved(telegram, tmp_path):
    telegram.server.chats[-55] = {"id": -55, "type": "group", "title": "Hall"}
    async with live(telegram, tmp_path) as life:
        await telegram.server.message(-55, ANNA, migrate_to_chat_id=HALL)
        await eventually((tmp_path / "telegram.json").exists)
        await life.posted(home(-55), "hello there")

    assert [one.text for one in telegram.shown(telegram.group)] == ["hello there"]
