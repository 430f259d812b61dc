"""The real bridge, with a real Baileys, against a small WhatsApp on loopback. Skipped where there is no Node.js."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from nanobot.channels.status import ChannelState
from nanobot.testing.live_channel import live
from tests.fakes.whatsapp_server import ANNA, FAKES, TOKEN, client_of, link
from tests.support.eventually import eventually
from tests.support.toy_gateway import free_port

pytestmark = pytest.mark.xdist_group("whatsapp-bridge")  # one process links a device for all of them
JID = f"{ANNA}@s.whatsapp.net"
HALL = "120363000000000001@g.us"


@pytest.mark.slow
async def test_a_client_without_the_token_and_a_web_page_are_refused(world, tmp_path):
    async with world.bridge(tmp_path) as bridge:
        for first in ('{"type": "auth", "token": "wrong"}', '{"type": "send", "to": "x"}', "no JSON"):
            async with connect(bridge.url) as socket:
                await socket.send(first)
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
            assert socket.close_code == 4003
        with pytest.raises(InvalidStatus):
            await connect(bridge.url, origin="https://example.org")  # type: ignore[arg-type]


@pytest.mark.slow
async def test_a_device_is_linked_by_its_qr_code_and_stays_linked(world, tmp_path):
    await link(world, tmp_path)
    async with world.bridge(tmp_path) as bridge, client_of(bridge.url) as client:
        status = await client.is_connected()

    assert (status["me"], status["lid"]) == ("4930123456@s.whatsapp.net", "111222333@lid")
    assert len(world.all("linked")) == 1
    assert not any(frame["type"] == "qr" for frame in client.frames)


@pytest.mark.slow
async def test_a_pairing_code_is_given_for_a_number(world, tmp_path):
    async with world.bridge(tmp_path) as bridge, client_of(bridge.url) as client:
        await client.hears("qr")
        await client.send("pair", phone="+49 30 123456")

        assert len((await client.hears("code"))["code"]) == 8


@pytest.mark.slow
async def test_messages_are_read_with_both_ids_of_who_wrote_them(linked_world, linked):
    async with linked_world.bridge(linked) as bridge, client_of(bridge.url) as client:
        await client.is_connected()
        linked_world.do("say", **{"from": ANNA}, id="M1", text="hello")
        by_number = await client.hears("message")
        linked_world.do("lid", **{"from": ANNA}, id="M2", text="again")
        by_lid = await client.hears("message")
        linked_world.do("note", id="M3", text="to me")
        note = await client.hears("message")

    assert (by_number["chat"], by_number["content"], by_number["pushName"]) == (JID, "hello", "Anna")
    assert by_lid["chat"] == "272700845121588@lid"
    assert {(frame["pn"], frame["lid"]) for frame in (by_number, by_lid)} == {(JID, "272700845121588@lid")}
    assert (note["fromMe"], note["chat"], note["content"]) == (True, "4930123456@s.whatsapp.net", "to me")


async def test_a_message_survives_kill_9_of_the_bridge_until_it_is_acknowledged(linked_world, linked):
    async with linked_world.bridge(linked) as bridge:
        async with client_of(bridge.url) as client:
            await client.is_connected()
            linked_world.do("say", **{"from": ANNA}, id="M1", text="hello")
            await client.hears("message", id="M1")
        await bridge.kill()
    async with linked_world.bridge(linked) as bridge, client_of(bridge.url) as client:
        again = await client.hears("message", id="M1")
        await client.send("ack", id="M1")
        await client.send("send", to=JID, id="3EB0AA", text="hi")
        await client.hears("sent")  # so it has read the acknowledgement
        linked_world.do("say", **{"from": ANNA}, id="M2", text="bye")
        await client.hears("message", id="M2")
        await bridge.kill()
    async with linked_world.bridge(linked) as bridge, client_of(bridge.url) as client:
        await client.hears("message", id="M2")

    assert again["content"] == "hello"
    assert "M1" not in [frame.get("id") for frame in client.frames]


@pytest.mark.slow
async def test_messages_from_while_it_was_not_connected_arrive(linked_world, linked):
    async with linked_world.bridge(linked) as bridge, client_of(bridge.url) as client:
        await client.is_connected()
        linked_world.do("drop")
        await client.hears("status", status="disconnected")
        linked_world.do("say", **{"from": ANNA}, id="M1", text="meanwhile")

        assert (await client.hears("message"))["content"] == "meanwhile"


@pytest.mark.slow
async def test_a_text_reaches_the_phone_once_and_quotes(linked_world, linked):
    async with linked_world.bridge(linked) as bridge:
        async with client_of(bridge.url) as client:
            await client.is_connected()
            linked_world.do("say", **{"from": ANNA}, id="M1", text="hello")
            await client.hears("message")
            await client.send("send", to=JID, id="3EB0AA", text="see https://example.org", quoted="M1")
            await client.hears("sent", id="3EB0AA", to=JID)
        await bridge.kill()
    async with linked_world.bridge(linked) as bridge, client_of(bridge.url) as client:
        await client.is_connected()
        await client.send("send", to=JID, id="3EB0AA", text="see https://example.org")
        await client.hears("sent", id="3EB0AA")
        await client.send("edit", to=JID, id="3EB0AA", text="see nothing")
        await client.hears("sent", id="3EB0AA")

    sent, edit = [one["message"] for one in linked_world.all("message") if one["to"] == JID]
    text = sent["extendedTextMessage"]
    assert text["text"] == "see https://example.org"
    assert (text["contextInfo"]["stanzaId"], text["contextInfo"]["quotedMessage"]) == ("M1", {"conversation": "hello"})
    assert edit["protocolMessage"]["key"]["id"] == "3EB0AA"
    assert edit["protocolMessage"]["editedMessage"]["extendedTextMessage"]["text"] == "see nothing"


@pytest.mark.slow
async def test_a_refused_text_fails_with_whatsapps_code(linked_world, linked):
    async with linked_world.bridge(linked) as bridge, client_of(bridge.url) as client:
        await client.is_connected()
        linked_world.do("refuse", code=463)
        await client.send("send", to=JID, id="3EB0AA", text="hello")

        assert (await client.hears("failed", id="3EB0AA"))["code"] == 463


@pytest.mark.slow
async def test_a_reaction_and_the_typing_indicator_are_shown(linked_world, linked):
    async with linked_world.bridge(linked) as bridge, client_of(bridge.url) as client:
        await client.is_connected()
        linked_world.do("say", **{"from": ANNA}, id="M1", text="hello")
        await client.hears("message")
        await client.send("typing", to=JID, on=True)
        await client.send("react", to=JID, id="M1", sender=JID, emoji="👀")
        await linked_world.sees("typing", to=JID)
        (reaction,) = await eventually(lambda: [one for one in linked_world.all("message") if one["to"] == JID])

    assert reaction["message"]["reactionMessage"]["text"] == "👀"
    assert reaction["message"]["reactionMessage"]["key"]["id"] == "M1"


@pytest.mark.slow
@pytest.mark.parametrize("code", [401, 440])
async def test_a_session_that_whatsapp_has_ended_is_never_opened_again(linked_world, linked, code):
    async with linked_world.bridge(linked) as bridge:
        async with client_of(bridge.url) as client:
            await client.is_connected()
            linked_world.do("end", code=code)
            await client.hears("logged_out", code=code)
        async with client_of(bridge.url) as client:
            await client.hears("logged_out", code=code)

    assert len(linked_world.all("login")) == 1
    assert (linked / "auth" / "creds.json").exists() is (code == 440)


@pytest.mark.slow
async def test_credentials_that_were_cut_off_are_replaced_by_the_former_ones(linked_world, linked):
    async with linked_world.bridge(linked) as bridge, client_of(bridge.url) as client:
        await client.is_connected()
    file = linked / "auth" / "creds.json"
    file.write_text(file.read_text()[:100])
    async with linked_world.bridge(linked) as bridge, client_of(bridge.url) as client:
        await client.is_connected()

    assert not any(frame["type"] == "qr" for frame in client.frames)


@pytest.mark.slow
async def test_two_bridges_never_use_the_same_keys_or_the_same_port(world, tmp_path):
    async def refusal(state: Path, port: int = 0) -> str:
        async with world.bridge(state, port) as second:
            assert second.process.stderr is not None
            said: bytes = await second.process.stderr.read()
            assert await second.process.wait() == 78
        return said.decode()

    async with world.bridge(tmp_path) as bridge:
        in_use = await refusal(tmp_path)
        no_port = await refusal(tmp_path / "other", int(bridge.url.rpartition(":")[2]))
        await bridge.kill()
    async with world.bridge(tmp_path) as bridge, client_of(bridge.url) as client:
        await client.hears("qr")  # the lock of one that was killed is free

    assert f"another bridge uses {tmp_path / 'auth'}" in in_use
    assert "is in use by another program" in no_port


async def test_the_gateway_links_an_account_and_answers_over_the_real_bridge(
    world, whatsapp, tmp_path, monkeypatch, capsys
):
    (state := tmp_path / "gateway").mkdir()
    (state / world.folder.name).symlink_to(world.folder)
    (programs := tmp_path / "bin").mkdir()
    variables = " ".join(f"{name}={value}" for name, value in world.environ.items())
    node = f'#!/bin/sh\n{variables} exec {shutil.which("node")} --import {FAKES / "whatsapp_root.mjs"} "$@"\n'
    (programs / "node").write_text(node)
    (programs / "node").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    port = free_port()
    settings: dict[str, Any] = {"bridge_managed": True, "bridge_url": f"ws://127.0.0.1:{port}", "bridge_token": TOKEN}
    async with live(whatsapp, state, **settings) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)
        login = asyncio.create_task(life.channel.login())
        await world.sees("new")
        async with client_of(f"ws://127.0.0.1:{port}") as client:
            world.do("scan", qr=(await client.hears("qr"))["qr"])
            assert await login
    async with live(whatsapp, state, **settings) as life:
        await asyncio.wait_for(life.channel.status.connected.wait(), 40)
        world.do("say", **{"from": ANNA}, id="M1", text="hello")
        answer = await world.sees("message", to=JID)

    assert "Linked as +4930123456." in capsys.readouterr().out
    assert answer["message"]["extendedTextMessage"]["text"] == "You said: hello"
    assert '"ack":"M1"' in (state / "messages.jsonl").read_text()


@pytest.mark.slow
async def test_a_group_is_read_with_its_mentions_and_answered(linked_world, linked):
    async with linked_world.bridge(linked) as bridge, client_of(bridge.url) as client:
        await client.is_connected()
        linked_world.do("group", **{"from": ANNA}, id="M1", text="hello all")
        plain = await client.hears("message")
        linked_world.do("group", **{"from": ANNA}, id="M2", text="@111222333 hi", mentions=["111222333@lid"])
        mention = await client.hears("message")
        await client.send("send", to=HALL, id="3EB0AA", text="hi Anna")
        await client.hears("sent", id="3EB0AA")
        answer = await linked_world.sees("message", to=HALL)

    assert (plain["chat"], plain["sender"], plain["isGroup"], plain["wasMentioned"]) == (HALL, JID, True, False)
    assert (mention["content"], mention["wasMentioned"]) == ("@111222333 hi", True)
    assert answer["message"]["extendedTextMessage"]["text"] == "hi Anna"
