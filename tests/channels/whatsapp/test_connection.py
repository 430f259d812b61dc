"""The bridge's protocol: who may write, what is acknowledged, and why the channel stops."""

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.status import ChannelState
from nanobot.channels.whatsapp.channel import address_of, read_message
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import live
from tests.fakes.whatsapp import ANNA, ANNA_LID, HALL, ME, ME_LID, TOKEN, ZOE
from tests.support.eventually import eventually


async def test_a_bridge_of_ones_own_needs_its_token(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path, bridge_token=" ") as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert "channels.whatsapp.bridgeToken is not set" in life.channel.status.last_error


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
        await whatsapp.bridge.tell({"type": "logged_out", "code": code})
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert told in life.channel.status.last_error


async def test_a_replaced_device_never_connects_again_but_one_that_was_logged_out_may(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path) as life:
        await life.is_up()
        await whatsapp.bridge.tell({"type": "logged_out", "code": 440})
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED and not whatsapp.bridge.lines)
        with pytest.raises(ChannelSetupError, match="440"):  # what the supervisor does at each retry
            await life.channel.start()

        assert whatsapp.bridge.lines == []


async def test_a_bridge_that_shows_a_qr_code_is_not_linked(whatsapp, tmp_path):
    whatsapp.bridge.is_linked = False
    async with live(whatsapp, tmp_path) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert "is not linked yet. Run `nanobot channels login whatsapp`" in life.channel.status.last_error


async def test_messages_wait_while_the_bridge_is_not_connected_to_whatsapp(whatsapp, tmp_path):
    bridge = whatsapp.bridge
    async with live(whatsapp, tmp_path) as life:
        await life.asked("hello")
        bridge.is_connected = False
        await bridge.tell_status()
        await eventually(lambda: life.channel.status.state is ChannelState.DOWN)
        receipt = life.post(Address("whatsapp", ANNA), "news")
        await eventually(lambda: not life.bus.outbound_size)
        waited = not receipt.settled and len(bridge.posts) == 1
        bridge.is_connected = True
        await bridge.tell_status()
        await life.shows("news")

    assert waited


async def test_login_shows_a_qr_code_until_the_account_is_linked(whatsapp, capsys):
    bridge = whatsapp.bridge
    bridge.is_linked = False
    login = asyncio.create_task(whatsapp.channel(MessageBus()).login())
    await eventually(lambda: bridge.lines and bridge.lines[0].is_trusted)
    bridge.is_linked = True
    await bridge.tell_status()

    assert await login
    said = capsys.readouterr().out
    assert "Scan this" in said
    assert "█" in said
    assert "Linked as +4930123456." in said


async def test_login_says_that_whatsapp_cannot_be_reached(whatsapp, capsys):
    bridge = whatsapp.bridge
    bridge.is_connected = False
    login = asyncio.create_task(whatsapp.channel(MessageBus()).login())
    await eventually(lambda: bridge.lines and bridge.lines[0].is_trusted)
    for _ in range(3):
        await bridge.tell_status()
    bridge.is_connected = True
    await bridge.tell_status()

    assert await login
    assert capsys.readouterr().out.count("web.whatsapp.com cannot be reached yet") == 1


async def test_login_with_a_number_shows_a_code_instead(whatsapp, capsys):
    bridge = whatsapp.bridge
    bridge.is_linked = False
    login = asyncio.create_task(whatsapp.channel(MessageBus(), phone="+49 30 123456").login())
    await eventually(lambda: any(frame["type"] == "pair" for frame in bridge.requests))
    await bridge.tell({"type": "status", "status": "connected"})

    assert await login
    said = capsys.readouterr().out
    assert "\n  ABCD-EFGH\n" in said
    assert "Scan" not in said
    assert bridge.requests == [{"type": "pair", "phone": "4930123456"}]


async def test_login_links_an_account_anew_that_was_logged_out_meanwhile(whatsapp):
    bridge = whatsapp.bridge
    bridge.is_linked = False
    login = asyncio.create_task(whatsapp.channel(MessageBus()).login())
    await eventually(lambda: bridge.lines and bridge.lines[0].is_trusted)
    (first,) = bridge.lines
    await bridge.tell({"type": "logged_out", "code": 401})
    await eventually(lambda: bridge.lines and bridge.lines[-1] is not first and bridge.lines[-1].is_trusted)
    bridge.is_linked = True
    await bridge.tell_status()

    assert await login


async def test_login_says_why_whatsapp_does_not_let_it_in(whatsapp):
    login = asyncio.create_task(whatsapp.channel(MessageBus(), phone="1").login())
    whatsapp.bridge.is_linked = False
    await eventually(lambda: whatsapp.bridge.lines and whatsapp.bridge.lines[0].is_trusted)
    await whatsapp.bridge.tell({"type": "logged_out", "code": 405})

    with pytest.raises(ChannelSetupError, match="Update nanobot"):
        await login


async def test_a_person_is_one_person_by_number_and_by_lid(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path, silent=True, allow_from=[ANNA_LID]) as life:
        await whatsapp.bridge.says("by number", sender=ANNA, lid=ANNA_LID)
        by_number = await life.hears("by number")
        await whatsapp.bridge.says("by lid", sender=ANNA_LID, pn=ANNA)
        by_lid = await life.hears("by lid")
        await whatsapp.bridge.says("hidden", sender=ANNA_LID)
        hidden = await life.hears("hidden")

    assert by_number.session_key == by_lid.session_key == f"whatsapp:{ANNA}"
    assert by_number.sender_id == by_lid.sender_id == "+4915112345678"
    assert (hidden.sender_id, hidden.chat_id) == (ANNA_LID, ANNA_LID)


async def test_numbers_that_the_config_knows_are_those_of_their_lids(whatsapp, tmp_path):
    mappings = {ANNA_LID.partition("@")[0]: "4915112345678"}
    async with live(whatsapp, tmp_path, silent=True, lid_mappings=mappings) as life:
        await whatsapp.bridge.says("hello", sender=ANNA_LID)
        message = await life.hears("hello")

    assert (message.sender_id, message.chat_id) == ("+4915112345678", ANNA)


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
        note = await whatsapp.bridge.says("a note", sender=ME, fromMe=True)
        await eventually(lambda: whatsapp.acknowledged(note))

    assert [message.content for message in life.heard] == ["a note"] * is_taken
    assert whatsapp.bridge.posts == []


async def test_strangers_get_no_code_from_an_account_that_is_a_persons_own(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path, allow_from=["+4930123456"]) as life:
        await life.is_up()
        greeting = await whatsapp.bridge.says("hi, how are you?", sender=ZOE)
        await eventually(lambda: whatsapp.acknowledged(greeting))
        await whatsapp.bridge.says("a note", sender=ME, fromMe=True)
        await life.shows("You said: a note", ME)

    assert whatsapp.bridge.in_chat(ZOE) == []
    assert life.people.pending("whatsapp") == []


async def test_quotes_forwards_and_voice_messages_are_read(whatsapp, tmp_path):
    bridge = whatsapp.bridge
    async with live(whatsapp, tmp_path, silent=True) as life:
        life.people.admit("whatsapp", whatsapp.person, owner=True)
        await bridge.says("is it?", quoted={"id": "x", "sender": ZOE, "text": "the plan\nis old"})
        quoting = await life.hears("is it?")
        await bridge.says("and yours?", quoted={"id": "y", "sender": ME_LID, "text": "mine"})
        quoting_us = await life.hears("and yours?")
        await bridge.says("look at this", forwarded=True)
        forwarded = await life.hears("look at this")
        await bridge.says("", media=[bridge.put_file("v", b"OggS sound", kind="audio", ptt=True, mimetype="audio/ogg")])
        await life.hears("[voice: ")

    assert quoting.content == "[in reply to a message]\n> the plan\n> is old\nis it?"
    assert quoting_us.content == "[in reply to you]\n> mine\nand yours?"
    assert [message.provenance for message in (quoting, quoting_us, forwarded)] == [
        Provenance.PERSON, Provenance.OWNER, Provenance.PERSON,
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["", "/etc/hostname", "{folder}/../../../etc/hostname"])
async def test_a_file_elsewhere_on_this_machine_is_not_read(whatsapp, tmp_path, path, caplog):
    file = {"path": path.format(folder=tmp_path), "kind": "document", "name": "plan.pdf"}
    async with live(whatsapp, tmp_path, silent=True) as life:
        await whatsapp.bridge.says("", media=[file])
        await life.hears("[file: download failed]")

    assert "the bridge could not download it" in caplog.text


async def test_a_reply_to_the_bot_in_a_group_addresses_it(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path, silent=True) as life:
        await whatsapp.bridge.says("not for you", chat=HALL)
        await whatsapp.bridge.says("for you", chat=HALL, wasMentioned=True)
        message = await life.hears("for you")

    assert [one.content for one in life.heard] == ["for you"]
    assert (message.session_key, message.sender_id) == (f"whatsapp:{HALL}", whatsapp.person)


async def test_read_receipts_are_sent_if_the_config_says_so(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path) as life:
        await life.asked("before")
    assert whatsapp.bridge.reads == []

    async with live(whatsapp, tmp_path, send_read_receipts=True) as life:
        message_id, _, _ = await life.asked("after")
        await eventually(lambda: whatsapp.bridge.reads)

    assert whatsapp.bridge.reads == [{"type": "read", "ids": [message_id], "to": ANNA, "sender": ANNA}]


async def test_a_bridge_of_an_earlier_release_works(whatsapp, tmp_path, monkeypatch):
    monkeypatch.setattr("nanobot.channels.whatsapp.connection._SILENT_S", 0.05)
    whatsapp.bridge.version = None
    async with live(whatsapp, tmp_path) as life:
        await life.is_up()
        await whatsapp.bridge.tell(
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
    assert {frame["type"] for frame in whatsapp.bridge.requests} == {"send"}


async def test_nothing_that_opens_a_door_is_in_the_log(whatsapp, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with live(whatsapp, tmp_path) as life:
        await life.asked("hello")
        await whatsapp.revoke()
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)
        said = life.channel.status.last_error

    of_fakes = ("asyncio", "websockets.server")
    assert TOKEN not in said + "".join(one.getMessage() for one in caplog.records if one.name not in of_fakes)


async def test_frames_that_are_not_as_agreed_do_not_end_the_connection(whatsapp, tmp_path):
    async with live(whatsapp, tmp_path) as life:
        await life.asked("before")
        (line,) = whatsapp.bridge.lines
        for text in ("no JSON", "[]", '{"type": 7}', '{"type": "message", "id": 3, "media": [1]}', '{"type": "sent"}'):
            await line.socket.send(text)
        await whatsapp.bridge.tell({"type": "error", "error": "something"})
        await life.asked("after")

        assert whatsapp.bridge.lines == [line]


KEYS = st.sampled_from(
    [
        "id",
        "chat",
        "sender",
        "pn",
        "lid",
        "content",
        "timestamp",
        "isGroup",
        "media",
        "path",
        "quoted",
        "text",
        "pushName",
    ]
)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from([ANNA, ANNA_LID, HALL]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)


@given(message=st.dictionaries(KEYS, ODD, max_size=10))
def test_any_message_is_read_or_ignored(message):
    read_message(message, {"+4930123456"}, {})
    incoming = read_message(message | {"id": "m", "sender": ANNA, "pn": ANNA, "isGroup": False}, set(), {})

    assert incoming is not None
    assert (incoming.sender_id, incoming.chat_id) == ("+4915112345678", ANNA)


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
