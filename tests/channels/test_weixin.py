"""What only WeChat has: logins and cursors, encrypted files, so many messages for each of a person's, for a day."""

import asyncio
import base64
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.bus.events import Address, OutboundKind
from nanobot.channels import weixin as weixin_channel
from nanobot.channels.cursors import SAVE_S
from nanobot.channels.media import MediaError, one_chunk
from nanobot.channels.status import ChannelState
from nanobot.channels.weixin import decrypt, encrypt, read_key
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import live, until
from nanobot.utils.clock import FrozenClock
from tests.fakes.served import RefusedError
from tests.fakes.weixin import ANNA, TOKEN, ZOE, text_item


def voice(words=""):
    return {"type": 3, "voice_item": {"text": words, "encode_type": 6, "media": {"encrypt_query_param": "none"}}}


async def test_ids_and_sessions_are_those_of_the_original(weixin, tmp_path):
    async with live(weixin, tmp_path, silent=True) as life:
        life.people.admit("weixin", ANNA, owner=True)
        message_id = await weixin.writes(text_item("one"), voice("two"))
        message = await life.hears("one")

    assert (message.chat_id, message.sender_id, message.session_key) == (ANNA, ANNA, f"weixin:{ANNA}")
    assert (message.content, message.message_id) == ("one\ntwo", message_id)
    assert message.provenance is Provenance.OWNER
    assert not message.in_group


async def test_messages_of_bots_and_of_groups_are_ignored(weixin, tmp_path):
    async with live(weixin, tmp_path, allow_from=["*"]) as life:
        await weixin.writes(text_item("from the bot"), message_type=2)
        await weixin.writes(text_item("from a group"), group_id="g@chatroom")
        await life.asked("hello")

    assert [message.content for message in life.heard] == ["hello"]


async def test_quotes_are_read_whether_they_are_told_or_named_by_an_id(weixin, tmp_path):
    told = {"title": "Zoe", "message_item": text_item("the plan\nis old")}
    async with live(weixin, tmp_path) as life:
        await weixin.writes(text_item("is it?") | {"ref_msg": told})
        await life.hears("is it?")
        first = await weixin.says("tea or coffee")
        answer = await life.shows("tea or coffee")
        await weixin.writes(text_item("mine") | {"ref_msg": {"svr_id": int(first)}})
        await weixin.writes(text_item("yours") | {"ref_msg": {"svr_id": answer.id}})
        await weixin.writes(text_item("whose") | {"ref_msg": {"svr_id": "1"}})
        await life.hears("whose")

    start = "[in reply to a message]\n> "
    assert [one.content for one in life.heard if one.content != "tea or coffee"] == [
        f"{start}Zoe | the plan\n> is old\nis it?",
        f"{start}tea or coffee\nmine",
        f"{start}You said: tea or coffee\nyours",
        f"{start}(a message that nanobot no longer has)\nwhose",
    ]
    assert life.heard[0].provenance is Provenance.PERSON


async def test_a_file_whose_address_is_not_wechats_is_not_asked_for(weixin, tmp_path):
    media = weixin.put_file(b"%PDF-1.7") | {"full_url": "http://169.254.169.254/latest"}
    strange = {key: value for key, value in media.items() if key != "encrypt_query_param"}
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.writes({"type": 4, "file_item": {"media": media, "file_name": "plan.pdf"}})
        await life.hears("[file: /")
        await weixin.writes(text_item("strange"), {"type": 4, "file_item": {"media": strange}})
        message = await life.hears("strange")

    assert message.content == "strange"


async def test_a_logged_out_bot_says_what_to_do_and_sends_what_waited_after_the_next_login(weixin, tmp_path):
    async with live(weixin, tmp_path, silent=True) as life:
        message = await life.receives("hello")
        weixin.token = "another"
        receipt = life.post(message, "the answer")
        await until(lambda: life.channel.status.state is ChannelState.FAILED)
        waited = not receipt.settled
        told = life.channel.status.last_error
    async with live(weixin, tmp_path, silent=True, token="another") as life:
        await weixin.says("again")
        await life.shows("the answer")

    assert "nanobot channels login weixin --force" in told
    assert waited
    cursors = [body["get_updates_buf"] for method, body in weixin.requests if method == "getupdates"]
    assert cursors.count("") == 2  # another login starts with a cursor of its own


async def test_wechat_is_told_when_the_bot_comes_and_goes_and_the_route_tag_of_the_config(weixin, tmp_path):
    async with live(weixin, tmp_path) as life:
        await life.asked("hello")
    notices, tags = weixin.notices, {headers.get("SKRouteTag") for headers in weixin.headers}
    weixin.headers = []
    async with live(weixin, tmp_path, route_tag=7) as life:
        await life.asked("hello again")

    assert notices == ["notifystart", "notifystop"] * 2
    assert (tags, {headers["SKRouteTag"] for headers in weixin.headers}) == ({None}, {"7"})


@pytest.mark.parametrize("is_configured", [False, True])
async def test_the_login_of_the_original_goes_on_where_it_stopped(weixin, tmp_path, is_configured):
    folder = tmp_path / "old" if is_configured else tmp_path / "data" / "weixin"
    folder.mkdir(parents=True)
    await weixin.says("answered by the original")
    (context,) = weixin.contexts
    saved = {
        "token": TOKEN,
        "get_updates_buf": base64.b64encode(b"1").decode(),
        "context_tokens": {ANNA: context},
        "base_url": weixin.url,
        "typing_tickets": {ANNA: {"ticket": "x"}},
    }
    (folder / "account.json").write_text(before := json.dumps(saved), encoding="utf-8")
    state = tmp_path / "data" / "state" / "channels" / "weixin"
    state.mkdir(parents=True)
    section: dict[str, Any] = {"state_dir": str(folder)} if is_configured else {}
    async with live(weixin, state, token="", **section) as life:
        await life.is_up()
        await life.posted(Address("weixin", ANNA), "I am back")
        await life.asked("hello")

    assert [message.content for message in life.heard] == ["hello"]
    assert (folder / "account.json").read_text(encoding="utf-8") == before


KEY = "000102030405060708090a0b0c0d0e0f"


# printf PLAIN | xxd -r -p | openssl enc -aes-128-ecb -K KEY | xxd -p; so does encryptAesEcb of openclaw-weixin 2.4.9
VECTORS = {
    "": "954f64f2e4e86e9eee82d20216684899",
    "61": "fe123486508b0eb503a8468388ef5812",
    "00112233445566778899aabbccddeeff": "69c4e0d86a7b0430d8cdb78070b4c55a954f64f2e4e86e9eee82d20216684899",
    "616263616263616263616263616263616263": "f327fe403baa37026d815e9beb874464f9d8e54a7d0adfbdfa1856a5bc355ec2",
}


@pytest.mark.parametrize(("plain", "encrypted"), VECTORS.items())
async def test_files_are_encrypted_as_openssl_does_it(plain, encrypted):
    key, data = bytes.fromhex(KEY), bytes.fromhex(encrypted)

    async def pieces():
        for start in range(0, len(data), 5):
            yield data[start : start + 5]

    assert encrypt(bytes.fromhex(plain), key).hex() == encrypted
    assert b"".join([chunk async for chunk in decrypt(pieces(), key)]).hex() == plain


@pytest.mark.parametrize("data", [b"", b"x" * 15, bytes.fromhex(VECTORS["61"])[:-1], bytes(16)])
async def test_a_file_that_is_not_complete_or_has_another_key_is_an_error(data):
    with pytest.raises(MediaError, match="not complete, or WeChat sent another file's key"):
        _ = [chunk async for chunk in decrypt(one_chunk(data), bytes.fromhex(KEY))]


def test_a_key_is_read_in_each_of_its_spellings():
    raw = base64.b64encode(bytes.fromhex(KEY)).decode()
    digits = base64.b64encode(KEY.encode()).decode()

    assert [read_key(text) for text in (raw, digits, KEY)] == [KEY] * 3
    assert [read_key(text) for text in ("", "none", "AAAA")] == ["", "none", "AAAA"]


@pytest.mark.parametrize(
    ("spelling", "size"),
    [("base64 of digits", 1), ("base64 of bytes", 16), ("digits", 17), ("no key", 15), ("digits", 300_000)],
)
async def test_received_files_are_decrypted(weixin, tmp_path, size, spelling):
    data = (b"\x89PNG\r\n\x1a\n" + b"x" * size)[-size:]
    media = weixin.put_file(data, hex_key=spelling != "base64 of bytes")
    item = {"media": media}
    if spelling == "digits":
        item |= {"aeskey": base64.b64decode(media.pop("aes_key")).decode()}
    elif spelling == "no key":
        del media["aes_key"]
        weixin.stored[media["encrypt_query_param"]] = data
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.writes({"type": 2, "image_item": item})
        message = await life.hears("[")

    assert Path(message.media[0]).read_bytes() == data


@pytest.mark.parametrize(
    ("key", "told"), [("bad", "a key that is none"), (base64.b64encode(bytes(16)).decode(), "another file's key")]
)
async def test_a_file_that_cannot_be_decrypted_is_said_to_be_missing(weixin, tmp_path, caplog, key, told):
    media = weixin.put_file(b"%PDF-1.7")
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.writes(text_item("look"), {"type": 4, "file_item": {"media": media | {"aes_key": key}}})
        message = await life.hears("look")

    assert message.content == "look\n[file: download failed]"
    assert told in caplog.text


ADDRESS = Address("weixin", ANNA)


WAITS = "waits until they write"


LATE = "(This had to wait until you wrote: WeChat took no more messages of mine.)"


LAST = "(WeChat takes no more messages of mine until you write again.)"


def texts(weixin, chat=ANNA):
    return [post.text for post in weixin.in_chat(chat)]


def sent(weixin):
    """The requests that send a message."""
    return [body["msg"] for method, body in weixin.requests if method == "sendmessage"]


async def test_what_exceeds_the_budget_waits_until_the_person_writes_and_comes_first(weixin, tmp_path, caplog):
    async with live(weixin, tmp_path, silent=True) as life:
        message = await life.receives("one")
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
        message = await life.receives("one")
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
        await life.posted(await life.receives("hello"), "hi")
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
        message = await life.receives("one")
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
        message = await life.receives("one")
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
        message = await life.receives("one")
        weixin.refusals.extend(RefusedError(-2, "prepare failed") for _ in range(2))
        await life.posted(message, "the answer")

    assert texts(weixin) == ["the answer"]
    assert "trying again in 0.05 s, or once" in caplog.text
    assert "trying again in 0.1 s, or once" in caplog.text
    assert "prepare failed" in caplog.text


async def test_a_refused_message_goes_out_at_once_when_the_person_writes(weixin, tmp_path, caplog):
    async with live(weixin, tmp_path, silent=True) as life:
        message = await life.receives("one")
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
        message = await life.receives("one")
        for number in range(4):
            life.post(message, f"step {number}", kind=OutboundKind.PROGRESS)
        await life.posted(message, "done")

    assert [text.removesuffix(f"\n\n{LAST}") for text in texts(weixin)] == shown


async def test_what_was_cut_off_by_a_crash_is_counted(weixin, tmp_path, caplog):
    async with live(weixin, tmp_path, silent=True, context_message_budget=2) as life:
        message = await life.receives("one")
        weixin.lose_answers(1)
        await life.posted(message, "twice")
        life.post(message, "no room")
        await until(lambda: caplog.text.count(WAITS) == 1)

    assert [text.partition("\n")[0] for text in texts(weixin)] == ["twice", "twice"]


async def test_each_message_has_an_id_of_its_own_and_a_retry_that_of_the_first(weixin, tmp_path):
    async with live(weixin, tmp_path, silent=True) as life:
        message = await life.receives("one")
        weixin.refuse(1, status=500)
        await life.posted(message, "first")
        await life.posted(message, "second")

    refused, first, second = [one["client_id"] for one in sent(weixin)]
    assert refused == first != second
    assert [one["context_token"] for one in sent(weixin)] == [*weixin.contexts] * 3


async def test_messages_do_not_come_in_bursts(weixin, tmp_path):
    async with live(weixin, tmp_path, silent=True) as life:
        life.adjust(pace_s=0.1)
        message = await life.receives("one")
        began = time.monotonic()
        for number in range(3):
            await life.posted(message, f"answer {number}")

        assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("p.png", "image_item", 16),
        ("p.png", "image_item", 300_000),
        ("a.mp4", "video_item", 17),
        ("a.md", "file_item", 1),
        ("v.ogg", "file_item", 15),
    ],
)
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
        life.adjust(typing_s=0.02)
        await weixin.says("hello")
        life.bus.begin(await life.hears("hello"), "turn")
        await until(lambda: len(weixin.typed_in) > 1)

    assert [method for method, _ in weixin.requests].count("getconfig") == 1


async def test_markdown_is_what_the_app_shows(weixin, tmp_path):
    text = "# Prices\n\n**Tea** ~~4~~ *3* for x < y, [here](https://example.org)\n\n```py\na < b\n```"
    async with live(weixin, tmp_path) as life:
        await life.asked("hello")
        await life.posted(ADDRESS, text)

    assert texts(weixin)[1] == ("# Prices\n\n**Tea** 4 3 for x ＜ y, here (https://example.org)\n\n```py\na < b\n```")


async def test_the_token_of_a_message_is_saved_at_once(weixin, tmp_path):
    async with live(weixin, tmp_path, silent=True) as life:
        await weixin.says("one")
        await life.hears("one")
        (token,) = weixin.contexts
        await until(lambda: token in (tmp_path / "weixin.json").read_text(), within_s=SAVE_S / 2)
