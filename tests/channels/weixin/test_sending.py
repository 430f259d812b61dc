"""What WeChat takes of the bot: so many messages for each of a person's, for a day; the rest waits until they write."""

import asyncio
import time
from datetime import UTC, datetime

import pytest

from nanobot.bus.events import Address, DeliveryFailedError, OutboundKind
from nanobot.channels.cursors import SAVE_S
from nanobot.channels.weixin import channel as weixin_channel
from nanobot.testing.live_channel import live, until
from nanobot.utils.clock import FrozenClock
from tests.fakes.served import RefusedError
from tests.fakes.weixin import ANNA, UNKNOWN, ZOE

ADDRESS = Address("weixin", ANNA)
WAITS = "waits until they write"
LATE = "(This had to wait until you wrote: WeChat took no more messages of mine.)"
LAST = "(WeChat takes no more messages of mine until you write again.)"


def texts(weixin, chat=ANNA):
    return [post.text for post in weixin.in_chat(chat)]


def sent(weixin):
    """The requests that send a message."""
    return [body["msg"] for method, body in weixin.calls if method == "sendmessage"]


async def test_what_exceeds_the_budget_waits_until_the_person_writes_and_comes_first(weixin, tmp_path, caplog):
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.says("one")
        message = await life.hears("one")
        for number in range(8):
            await life.posted(message, f"answer {number}")
        receipt = life.post(message, "answer 8")
        life.post(message, "answer 9")
        await until(lambda: WAITS in caplog.text)
        waited = not receipt.settled and len(sent(weixin)) == 8
        await weixin.says("two")
        life.answers(await life.hears("two"), "to two")
        await life.shows("to two")

    assert waited
    assert texts(weixin)[6:8] == ["answer 6", f"answer 7\n\n{LAST}"]
    assert texts(weixin)[8:] == [
        f"{LATE}\n\nanswer 8",
        "answer 9",
        "to two",
    ]
    assert life.dead == []


async def test_what_waits_is_sent_after_a_restart_once_the_person_writes(weixin, tmp_path, caplog):
    async with live(weixin, tmp_path, silent=True, context_message_budget=1) as life:
        await weixin.says("one")
        message = await life.hears("one")
        await life.posted(message, "first")
        life.post(message, "second")
        await until(lambda: caplog.text.count(WAITS) == 1)
    async with live(weixin, tmp_path, silent=True, context_message_budget=1) as life:
        await until(lambda: caplog.text.count(WAITS) == 2)
        before = texts(weixin)
        await weixin.says("two")
        await life.shows("second")

    assert before == [f"first\n\n{LAST}"]
    assert texts(weixin)[1:] == [f"{LATE}\n\nsecond\n\n{LAST}"]


async def test_a_reminder_to_somebody_who_never_wrote_waits_for_their_first_message(weixin, tmp_path):
    async with live(weixin, tmp_path, allow_from=["*"], silent=True) as life:
        await life.is_up()
        receipt = life.post(Address("weixin", ZOE), "good morning")
        await weixin.says("hello")
        await life.posted(await life.hears("hello"), "hi")
        waited = not receipt.settled
        await weixin.says("hello", sender=ZOE)
        await asyncio.wait_for(receipt.wait(), 10)

    assert waited
    assert texts(weixin, ZOE) == [f"{LATE}\n\ngood morning"]
    assert texts(weixin) == ["hi"]


async def test_a_day_after_the_last_message_nothing_is_asked_of_wechat(weixin, tmp_path, caplog):
    clock = FrozenClock(datetime(2026, 11, 26, 12, tzinfo=UTC))
    weixin.now = lambda: clock.now().timestamp()
    async with live(weixin, tmp_path, silent=True, clock=clock) as life:
        life.adjust(stall_s=0.0)
        await weixin.says("one")
        message = await life.hears("one")
        clock.advance(86400 - 60)
        await life.posted(message, "in time")
        clock.advance(61)
        life.post(message, "too late")
        await until(lambda: caplog.text.count(WAITS) == 1)
        await weixin.says("two")
        await life.shows("too late")

    assert [LATE in text for text in texts(weixin)] == [False, True]
    assert len(sent(weixin)) == 2


async def test_a_token_that_went_stale_is_replaced_by_the_one_that_wechat_gives(weixin, tmp_path):
    weixin.gives_tokens = True
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.says("one")
        message = await life.hears("one")
        weixin.is_stale.update(weixin.contexts)
        await life.posted(message, "the answer")
        await life.posted(message, "more")

    assert texts(weixin) == ["the answer", "more"]
    assert len(sent(weixin)) == 3


async def test_a_message_that_wechat_refuses_for_now_is_sent_later_and_needs_no_excuse(
    weixin, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(weixin_channel, "_FIRST_PAUSE_S", 0.05)
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.says("one")
        message = await life.hears("one")
        weixin.refusals.extend(RefusedError(-2, "prepare failed") for _ in range(2))
        await life.posted(message, "the answer")

    assert texts(weixin) == ["the answer"]
    assert "trying again in 0.05 s, or once" in caplog.text
    assert "trying again in 0.1 s, or once" in caplog.text
    assert "prepare failed" in caplog.text


async def test_a_refused_message_goes_out_at_once_when_the_person_writes(weixin, tmp_path, caplog):
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.says("one")
        message = await life.hears("one")
        weixin.refusals.append(RefusedError(-2))
        receipt = life.post(message, "the answer")
        await until(lambda: "trying again in 60 s" in caplog.text)
        await weixin.says("two")
        await asyncio.wait_for(receipt.wait(), 10)

    assert texts(weixin) == ["the answer"]


@pytest.mark.parametrize(
    ("section", "shown"),
    [
        ({}, ["step 0", "step 1", "done"]),
        ({"reply_progress_max_messages": 5, "context_message_budget": 3}, ["step 0", "step 1", "done"]),
        ({"reply_progress_messages": False}, ["done"]),
        ({"reply_progress_messages": False, "send_progress": True}, ["step 0", "step 1", "done"]),
    ],
)
async def test_progress_leaves_messages_for_the_answer(weixin, tmp_path, section, shown):
    async with live(weixin, tmp_path, silent=True, **section) as life:
        await weixin.says("one")
        message = await life.hears("one")
        for number in range(4):
            life.post(message, f"step {number}", kind=OutboundKind.PROGRESS)
        await life.posted(message, "done")

    assert [text.removesuffix(f"\n\n{LAST}") for text in texts(weixin)] == shown


async def test_what_was_cut_off_by_a_crash_is_counted(weixin, tmp_path, caplog):
    async with live(weixin, tmp_path, silent=True, context_message_budget=2) as life:
        await weixin.says("one")
        message = await life.hears("one")
        weixin.lose_answers(1)
        await life.posted(message, "twice")
        life.post(message, "no room")
        await until(lambda: caplog.text.count(WAITS) == 1)

    assert [text.partition("\n")[0] for text in texts(weixin)] == ["twice", "twice"]


async def test_each_message_has_an_id_of_its_own_and_a_retry_that_of_the_first(weixin, tmp_path):
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.says("one")
        message = await life.hears("one")
        weixin.refuse(1, status=500)
        await life.posted(message, "first")
        await life.posted(message, "second")

    refused, first, second = [one["client_id"] for one in sent(weixin)]
    assert refused == first != second
    assert [one["context_token"] for one in sent(weixin)] == [*weixin.contexts] * 3


async def test_messages_do_not_come_in_bursts(weixin, tmp_path):
    async with live(weixin, tmp_path, silent=True) as life:
        life.adjust(pace_s=0.1)
        await weixin.says("one")
        message = await life.hears("one")
        began = time.monotonic()
        for number in range(3):
            await life.posted(message, f"answer {number}")

        assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize(
    ("name", "kind"), [("p.png", "image_item"), ("a.mp4", "video_item"), ("a.md", "file_item"), ("v.ogg", "file_item")]
)
@pytest.mark.parametrize("size", [1, 16, 300_000])
async def test_files_are_encrypted_uploaded_and_sent_by_kind(weixin, tmp_path, name, kind, size):
    (tmp_path / name).write_bytes(data := (b"\x89PNG\r\n\x1a\n" + b"x" * size)[-size:])
    async with live(weixin, tmp_path) as life:
        await life.asked("hello")
        await life.posted(ADDRESS, "", media=[str(tmp_path / name)])

    _, post = weixin.in_chat(ANNA)
    assert weixin.sent_file(post.item[kind]["media"]) == data
    assert kind != "file_item" or (post.item[kind]["file_name"], post.item[kind]["len"]) == (name, str(size))


async def test_the_typing_ticket_is_asked_for_once(weixin, tmp_path):
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.says("hello")
        life.bus.begin(await life.hears("hello"), "turn")
        await until(lambda: len(weixin.typed_in) > 1)

    assert [method for method, _ in weixin.calls].count("getconfig") == 1


async def test_markdown_is_what_the_app_shows(weixin, tmp_path):
    text = "# Prices\n\n**Tea** ~~4~~ *3* for x < y, [here](https://example.org)\n\n```py\na < b\n```"
    async with live(weixin, tmp_path) as life:
        await life.asked("hello")
        await life.posted(ADDRESS, text)

    assert texts(weixin)[1] == ("# Prices\n\n**Tea** 4 3 for x ＜ y, here (https://example.org)\n\n```py\na < b\n```")


async def test_a_refusal_that_nobody_knows_is_tried_again_and_then_said(weixin, tmp_path):
    weixin.refusals.extend(RefusedError(UNKNOWN, "不知道") for _ in range(4))
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.says("hello")
        message = await life.hears("hello")
        with pytest.raises(DeliveryFailedError, match=r"不知道 \(-99\)"):
            await life.posted(message, "lost")
        await life.posted(message, "next")

    assert texts(weixin) == ["next"]


async def test_the_token_of_a_message_is_saved_at_once(weixin, tmp_path):
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.says("one")
        await life.hears("one")
        (token,) = weixin.contexts
        await until(lambda: token in (tmp_path / "weixin.json").read_text(), within_s=SAVE_S / 2)
