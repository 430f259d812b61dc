"""The WebSocket channel on its wire: a real client of the library that most people use, on a real socket."""

import asyncio
import base64
import json
import os
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.typing import Origin

from nanobot.bus.events import Address, DeliveryFailedError, OutboundKind, Receipt
from nanobot.channels.incoming import Payload
from nanobot.channels.status import ChannelState
from nanobot.channels.websocket.chat import ClientChat, open_attachment
from nanobot.testing.live_channel import LiveChannel, live
from tests.fakes.platform_websocket import WebSocketPlatform, token_of
from tests.support.certificates import certificate
from tests.support.eventually import eventually

ANNA = Address("websocket", "anna")


class Wire:
    """A client that shows every frame as it is."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.welcome: dict[str, Any] = {}

    async def send(self, frame: object) -> None:
        await self.connection.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))

    async def next(self) -> dict[str, Any]:
        """The next frame."""
        frame: dict[str, Any] = json.loads(await asyncio.wait_for(self.connection.recv(), 5))
        return frame

    async def of_type(self, kind: str) -> dict[str, Any]:
        """The next frame of that type; what comes before is passed over."""
        while (frame := await self.next())["type"] != kind:
            pass
        return frame

    async def asked(self, frame: object) -> dict[str, Any]:
        """What comes back for a frame, where nothing else is said meanwhile."""
        await self.send(frame)
        return await self.next()


@pytest.fixture
def platform(tmp_path: Path) -> WebSocketPlatform:
    """Only the port and the usual settings: the clients are the tests' own."""
    return WebSocketPlatform(tmp_path)


@asynccontextmanager
async def serving(platform: WebSocketPlatform, folder: Path, **settings: Any) -> AsyncIterator[LiveChannel]:
    async with live(platform, folder, silent=True, **{"ping_interval_s": 20, "ping_timeout_s": 20, **settings}) as life:
        await life.is_up()
        yield life


@asynccontextmanager
async def client(platform: WebSocketPlatform, name: str = "anna", **hello: Any) -> AsyncIterator[Wire]:
    async with connect(f"ws://127.0.0.1:{platform.port}", max_queue=4, close_timeout=0.2) as connection:
        wire = Wire(connection)
        await wire.send({"type": "hello", "token": token_of(name), **hello})
        wire.welcome = await wire.next()
        yield wire


async def on_the_wire(life: LiveChannel) -> Receipt:
    """Say something to Anna, who does not read."""
    receipt = life.post(ANNA, "hello")
    await eventually(lambda: not life.bus.outbound_size)
    await asyncio.sleep(0.02)
    return receipt


# who may connect


@pytest.mark.parametrize(
    ("hello", "word"),
    [
        ({"type": "hello", "client": "anna", "token": "guessed"}, "token is wrong"),
        ({"type": "hello", "client": "anna"}, "token is wrong"),
        ({"type": "hello", "client": "anna", "token": ""}, "token is wrong"),
        ({"type": "hello", "client": "anna", "token": "schlüssel\ud800"}, "token is wrong"),
        ({"type": "hello", "client": "anna", "token": token_of("bert")}, "token belongs to the client bert"),
        ({"type": "hello", "client": ["anna"], "token": token_of("anna")}, "token belongs to the client anna"),
        ({"type": "hello", "token": token_of("anna"), "after": -1, "epoch": "x"}, "`after` must be"),
        ({"type": "message", "id": "1", "text": "hi"}, "first frame must be"),
        ("no json", "JSON"),
        (b"\x00\x01", "JSON"),
        ("[" * 4000, "JSON"),
        ('{"type": "hello", "padding": "' + "x" * 5000 + '"}', "at most 4096 bytes"),
    ],
)
async def test_who_does_not_say_a_proper_hello_is_sent_away_with_a_word(platform, tmp_path, caplog, hello, word):
    async with serving(platform, tmp_path), connect(f"ws://127.0.0.1:{platform.port}") as connection:
        wire = Wire(connection)
        told = await wire.asked(hello)
        with pytest.raises(ConnectionClosed):
            await wire.next()

    assert told["type"] == "error"
    assert word in told["reason"]
    assert connection.close_code == 1008
    assert "guessed" not in caplog.text


async def test_who_guesses_tokens_is_in_the_log_once(platform, tmp_path, caplog):
    async with serving(platform, tmp_path):
        for number in range(3):
            async with connect(f"ws://127.0.0.1:{platform.port}") as connection:
                await Wire(connection).asked({"type": "hello", "token": f"guess {number}"})

    assert caplog.text.count("had a wrong token") == 1


async def test_who_says_nothing_is_sent_away(platform, tmp_path, monkeypatch):
    monkeypatch.setattr("nanobot.channels.websocket.channel.HELLO_S", 0.05)
    async with serving(platform, tmp_path), connect(f"ws://127.0.0.1:{platform.port}") as connection:
        told = await Wire(connection).next()

    assert "No hello" in told["reason"]


async def test_connections_that_say_nothing_keep_nobody_out(platform, tmp_path, monkeypatch):
    monkeypatch.setattr("nanobot.channels.websocket.channel.MOST_UNIDENTIFIED", 3)
    async with serving(platform, tmp_path), AsyncExitStack() as stack:
        silent = [
            await stack.enter_async_context(connect(f"ws://127.0.0.1:{platform.port}", close_timeout=0.2))
            for _ in range(10)
        ]
        async with client(platform) as wire:
            welcome = wire.welcome["type"]
        await asyncio.wait_for(silent[0].wait_closed(), 5)

    assert welcome == "welcome"


async def test_a_connection_that_sends_much_before_its_hello_is_cut(platform, tmp_path):
    async with serving(platform, tmp_path), connect(f"ws://127.0.0.1:{platform.port}") as connection:
        with pytest.raises(ConnectionClosed):
            await connection.send("[" * 8_000_000)
            await connection.recv()

    assert connection.close_code == 1006


async def test_a_token_is_one_client_whatever_name_is_said(platform, tmp_path):
    async with serving(platform, tmp_path, allow_from=["anna", "bert"]) as life, client(platform, "bert") as wire:
        await wire.asked({"type": "message", "id": "1", "text": "I am anna", "client": "anna", "sender": "anna"})

    assert wire.welcome["client"] == "bert"
    assert [(one.sender_id, one.chat_id) for one in life.heard] == [("bert", "bert")]


async def test_without_a_token_in_the_config_one_is_made_and_kept_for_the_user_alone(platform, tmp_path, caplog):
    caplog.set_level("INFO")
    async with serving(platform, tmp_path, clients={}):
        token = (tmp_path / "token").read_text(encoding="ascii")
        async with connect(f"ws://127.0.0.1:{platform.port}") as connection:
            refused = await Wire(connection).asked({"type": "hello", "client": "anna"})
    async with serving(platform, tmp_path, clients={}), client(platform, token=token) as wire:
        welcome = wire.welcome["client"]
    own = {"clients": {}, "token": "one for all"}
    async with serving(platform, tmp_path, **own), client(platform, token="one for all") as wire:
        welcome_by_config = wire.welcome["client"]

    assert "token is wrong" in refused["reason"]
    assert welcome == welcome_by_config == "default"
    assert len(token) == 48
    assert token not in caplog.text
    assert str(tmp_path / "token") in caplog.text
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"clients": {"anna": {"token": ""}}}, "clients.anna.token is empty"),
        ({"clients": {"an na": {"token": "long enough"}}}, "'an na' is not a name"),
        ({"clients": {"a": {"token": "same"}, "b": {"token": "same"}}}, "two clients have the same token"),
        ({"clients": {"a": {"token": "same"}}, "token": "same"}, "two clients have the same token"),
        ({"clients": {"default": {"token": "one"}}, "token": "another"}, ".default are tokens of the same client"),
        ({"ssl_certfile": "none.pem"}, "channels.websocket.sslCertfile"),
        ({}, "channels.websocket.port"),
    ],
)
async def test_what_its_owner_has_to_mend_turns_it_red_with_a_word(platform, tmp_path, settings, word):
    async with serving(platform, tmp_path), live(platform, tmp_path / "second", **settings) as second:
        await eventually(lambda: second.channel.status.state is ChannelState.FAILED)

    assert word in second.channel.status.last_error


async def test_no_page_may_connect_but_those_of_the_config(platform, tmp_path):
    own = "https://my.example"
    async with serving(platform, tmp_path, allow_origins=[own]):
        for origin in ("https://evil.example", "null", "http://127.0.0.1:8765"):
            with pytest.raises(InvalidStatus, match="403"):
                async with connect(f"ws://127.0.0.1:{platform.port}", origin=Origin(origin)):
                    pass
        async with connect(f"ws://127.0.0.1:{platform.port}", origin=Origin(own)) as connection:
            told = await Wire(connection).asked({"type": "hello", "token": token_of("anna")})

    assert told["type"] == "welcome"


async def test_it_speaks_tls(platform, tmp_path):
    path, _ = certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=path)
    async with (
        serving(platform, tmp_path, ssl_certfile=str(path)),
        connect(f"wss://localhost:{platform.port}", ssl=trusted) as connection,
    ):
        told = await Wire(connection).asked({"type": "hello", "token": token_of("anna")})

    assert told["type"] == "welcome"


# what is said, by number


async def test_all_kinds_come_in_order_and_numbered(platform, tmp_path):
    async with serving(platform, tmp_path) as life, client(platform) as wire:
        life.post(ANNA, "thinking", kind=OutboundKind.REASONING, turn_id="t")
        life.post(ANNA, "reading", kind=OutboundKind.PROGRESS, turn_id="t")
        life.post(ANNA, "one ", kind=OutboundKind.STREAM_DELTA, turn_id="t")
        life.post(ANNA, "one two", kind=OutboundKind.STREAM_END, turn_id="t")
        life.post(ANNA, "one two", turn_id="t")
        frames = [await wire.next() for _ in range(5)]

    assert [one["type"] for one in frames] == ["reasoning", "progress", "delta", "delta_end", "reply"]
    assert [one["seq"] for one in frames] == [1, 2, 3, 4, 5]
    assert {one["turn"] for one in frames} == {"t"}
    assert [one["type"] for one in frames if "id" in one] == ["reply"]


async def test_a_client_that_comes_back_gets_what_it_missed_and_nothing_twice_also_after_a_restart(platform, tmp_path):
    async with serving(platform, tmp_path) as life:
        async with client(platform) as wire:
            await life.posted(ANNA, "one")
            seen = (await wire.next())["seq"]
        for text in ("two", "three"):
            life.post(ANNA, text)
        async with client(platform, after=seen, epoch=wire.welcome["epoch"]) as again:
            frames = [await again.next(), await again.next()]
            await life.posted(ANNA, "four")
            frames.append(await again.next())
        async with client(platform, after=1000, epoch=wire.welcome["epoch"]) as ahead:  # believed
            await life.posted(ANNA, "half a pair: \ud800")
            frames.append(await ahead.next())
    async with serving(platform, tmp_path) as life:
        life.post(ANNA, "six")
        async with client(platform, after=5, epoch=wire.welcome["epoch"]) as anew:
            last = await anew.next()

    assert [(one["seq"], one["text"]) for one in frames] == [
        (2, "two"), (3, "three"), (4, "four"), (5, "half a pair: \ufffd")
    ]  # fmt: skip
    assert (last["seq"], last["text"]) == (1, "six")
    assert anew.welcome["epoch"] != wire.welcome["epoch"]


async def test_a_client_that_was_away_too_long_hears_that_there_is_a_gap(platform, tmp_path, monkeypatch):
    monkeypatch.setattr("nanobot.channels.websocket.chat.MOST_FRAMES", 2)
    async with serving(platform, tmp_path) as life:
        async with client(platform) as wire:
            for text in ("one", "two", "three", "four"):
                await life.posted(ANNA, text)
                await wire.next()
        async with client(platform, after=1, epoch=wire.welcome["epoch"]) as again:
            frames = [await again.next() for _ in range(3)]

    assert frames[0] == {"type": "gap", "after": 1}
    assert [one["text"] for one in frames[1:]] == ["three", "four"]


async def test_a_reply_counts_as_delivered_only_when_the_other_end_has_it_or_says_so(platform, tmp_path):
    async with serving(platform, tmp_path) as life:
        async with client(platform) as wire:
            wire.connection.transport.pause_reading()
            receipt = await on_the_wire(life)
            too_early = receipt.settled
            wire.connection.transport.resume_reading()
            ids = await asyncio.wait_for(receipt.wait(), 5)
            frame = await wire.next()
            wire.connection.transport.pause_reading()
            receipt = await on_the_wire(life)
            wire.connection.transport.abort()
        async with client(platform, after=2, epoch=wire.welcome["epoch"]):
            await asyncio.wait_for(receipt.wait(), 5)

    assert not too_early
    assert ids == (frame["id"],)


async def test_what_a_stop_left_undelivered_comes_again_under_the_same_id(platform, tmp_path, monkeypatch):
    monkeypatch.setattr("nanobot.channels.websocket.channel.CLOSE_S", 0.05)
    async with AsyncExitStack() as until_the_end:
        async with serving(platform, tmp_path) as life:
            wire = await until_the_end.enter_async_context(client(platform))
            wire.connection.transport.pause_reading()
            await on_the_wire(life)
        wire.connection.transport.resume_reading()
        first = await wire.next()
    async with serving(platform, tmp_path), client(platform) as again:
        second = await again.next()

    assert first["text"] == second["text"] == "hello"
    assert first["id"] == second["id"]


async def test_connections_of_one_name_see_the_same_though_one_does_not_read_and_other_names_do_not(platform, tmp_path):
    text = "x" * 100_000
    async with (
        serving(platform, tmp_path, allow_from=["*"]) as life,
        client(platform) as asleep,
        client(platform) as phone,
        client(platform) as laptop,
        client(platform, "bert") as other,
    ):
        asleep.connection.transport.pause_reading()
        for number in range(40):  # more than any socket's buffers
            life.post(ANNA, f"{number} {text}")
            frames = [await one.next() for one in (phone, laptop)]
        await life.posted(Address("websocket", "bert"), "for bert")
        told = (await other.next())["text"]

    assert [one["text"][:3] for one in frames] == ["39 ", "39 "]
    assert told == "for bert"


async def test_a_connection_that_answers_no_ping_is_closed(platform, tmp_path):
    async with serving(platform, tmp_path, ping_interval_s=0.05, ping_timeout_s=0.05), client(platform) as wire:
        wire.connection.transport.pause_reading()
        await asyncio.sleep(0.2)
        wire.connection.transport.resume_reading()
        with pytest.raises(ConnectionClosed):
            await wire.next()


async def test_a_client_whose_pong_waits_behind_a_large_frame_stays_connected(platform, tmp_path):
    message = json.dumps({"type": "message", "id": "1", "text": "x" * 20_000}).encode()
    frame = Frame(Opcode.TEXT, message).serialize(mask=True)
    async with serving(platform, tmp_path, ping_interval_s=0.05, ping_timeout_s=0.3), client(platform) as wire:
        wire.connection.transport.pause_reading()
        for start in range(0, len(frame), 2500):  # for most of a second
            wire.connection.transport.write(frame[start : start + 2500])
            await asyncio.sleep(0.1)
        wire.connection.transport.resume_reading()

        assert await wire.of_type("ack") == {"type": "ack", "id": "1", "accepted": True}


async def test_a_client_that_is_away_costs_nothing_and_gets_it_when_it_is_back_and_nobody_is_not_waited_for(
    platform, tmp_path, monkeypatch
):
    monkeypatch.setattr("nanobot.channels.websocket.channel.DELIVERY_S", 0.01)
    async with serving(platform, tmp_path) as life:
        receipt = life.post(ANNA, "hello")
        await eventually(lambda: not life.bus.outbound_size)
        await asyncio.sleep(0.05)
        handed_while_away = life.bus.handed
        async with client(platform) as wire:
            told = await wire.next()
            await asyncio.wait_for(receipt.wait(), 5)
        for name in ("nobody", "no name at all"):
            with pytest.raises(DeliveryFailedError, match="is connected or allowed"):
                await life.posted(Address("websocket", name), "hello?")

    assert len(life.dead) == 2
    assert handed_while_away == 0
    assert told["text"] == "hello"


async def test_a_stranger_who_left_before_the_code_arrived_is_not_waited_for(platform, tmp_path, monkeypatch):
    monkeypatch.setattr("nanobot.channels.websocket.channel.DELIVERY_S", 0.05)
    async with serving(platform, tmp_path) as life:
        async with client(platform, "zoe") as wire:
            wire.connection.transport.pause_reading()
            await wire.send({"type": "message", "id": "1", "text": "let me in"})
            await eventually(lambda: life.people.pending("websocket") and not life.bus.outbound_size)
            await asyncio.sleep(0.02)  # the code is on the wire by now
            wire.connection.transport.abort()
        await eventually(lambda: life.dead)
        async with client(platform, "zoe") as again:
            told = await again.asked({"type": "ping"})

    assert "is connected or allowed" in life.dead[0]
    assert told == {"type": "pong"}


def test_who_comes_back_reads_on_and_who_is_new_begins_with_what_is_owed():
    chat = ClientChat("anna")
    for number in range(4):
        chat.add("{}", f"id {number}")
    chat.confirm(2)

    assert [frame.seq for frame in chat.after(1)] == [2, 3, 4]
    assert chat.before_undelivered() == 2
    chat.confirm(4)
    assert chat.before_undelivered() == 4


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=40), st.integers(0, 40))
def test_what_is_kept_stays_within_bounds_and_nothing_that_is_owed_is_forgotten(sayings, arrived):
    chat, said = ClientChat("anna", most_frames=10, most_characters=2000), []
    for number, (lasts, size) in enumerate(sayings):
        said.append(chat.add("{" + "x" * size, f"id {number}" if lasts else None))
        if number == arrived:
            chat.confirm(number)

    kept = chat.after(0)

    forgotten = [frame for frame in said if frame not in kept]
    could_go = [frame for frame in kept[:-1] if not frame.is_undelivered]
    assert kept[-1:] == said[-1:]
    assert not any(frame.is_undelivered for frame in forgotten)
    assert not could_go or (len(kept) <= 10 and sum(len(frame.text) for frame in kept) <= 2000)
    newest = max((frame.seq for frame in forgotten if frame.id is not None), default=0)
    assert [chat.has_gap(seq) for seq in (0, newest - 1, newest)] == [newest > 0, newest > 0, False] or not newest
    assert not chat.has_gap(newest)


# what a client says


@pytest.mark.parametrize(
    ("frame", "word"),
    [
        ("{", "JSON"),
        ("[]", "JSON"),
        (b"{}", "JSON"),
        ({"type": "shout"}, "message, fetch or ping"),
        ({"type": ["message"]}, "message, fetch or ping"),
        ("[" + "{}," * 2_000_000 + "{}]", "brackets and commas"),
        ({"type": "message", "text": "hi"}, "needs a unique `id`"),
        ({"type": "message", "text": "hi", "id": "x" * 200}, "needs a unique `id`"),
        ({"type": "message", "text": ["hi"], "id": "1"}, "`text`"),
        ({"type": "message", "text": "hi", "id": "1", "thread": "../x"}, "`thread`"),
        ({"type": "message", "text": "hi", "id": "1", "media": {}}, "`media`"),
        ({"type": "message", "text": "hi", "id": "1", "media": [{}]}, "needs `data`"),
        ({"type": "message", "text": "hi", "id": "1", "media": [{"data": "€"}]}, "base64"),
        ({"type": "message", "text": "hi", "id": "1", "media": [{"path": "/etc/hostname"}]}, "mediaFolders"),
        ({"type": "fetch", "file": "guessed"}, "no such file"),
        ({"type": "fetch", "file": {}}, "no such file"),
    ],
)
async def test_a_frame_that_cannot_be_used_is_answered_and_the_connection_stays(platform, tmp_path, frame, word):
    async with serving(platform, tmp_path) as life, client(platform) as wire:
        told = await wire.asked(frame)
        after = await wire.asked({"type": "ping"})

    assert told["type"] == "error"
    assert word in told["reason"]
    assert after == {"type": "pong"}
    assert life.heard == []


async def test_a_message_is_acknowledged_once_it_is_on_the_disk_and_its_repeat_too_but_heard_once(platform, tmp_path):
    async with serving(platform, tmp_path) as life, client(platform) as wire:
        said: dict[str, Any] = {"type": "message", "id": "m1", "text": "hi \ud800", "thread": None, "media": []}
        life.bus.full = True
        refused = await wire.asked(said)
        life.bus.full = False
        told = [await wire.asked(said) for _ in range(2)]

    assert (refused["type"], refused["id"]) == ("nack", "m1")
    assert "disk is full" in refused["reason"]
    assert told == [{"type": "ack", "id": "m1", "accepted": True}, {"type": "ack", "id": "m1", "accepted": False}]
    assert [one.content for one in life.heard] == ["hi \ufffd"]


async def test_a_frame_that_is_too_large_ends_that_connection_only(platform, tmp_path):
    async with serving(platform, tmp_path, max_message_bytes=1000), client(platform) as wire:
        async with client(platform) as greedy:
            await greedy.send({"type": "message", "id": "1", "text": "x" * 2000})
            with pytest.raises(ConnectionClosed):
                await greedy.next()
        told = await wire.asked({"type": "ping"})

    assert greedy.connection.close_code == 1009
    assert told == {"type": "pong"}


async def test_a_file_of_a_folder_that_was_named_may_be_said_by_its_path(platform, tmp_path):
    (shared := tmp_path / "shared").mkdir()
    (shared / "note.txt").write_text("hello", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (shared / "way-out.txt").symlink_to(tmp_path / "secret.txt")
    async with serving(platform, tmp_path, media_folders=[str(shared)]) as life, client(platform) as wire:
        told = [
            (await wire.asked({"type": "message", "id": path.name, "text": "see", "media": [{"path": str(path)}]}))
            for path in (shared / "note.txt", shared / "way-out.txt", shared / ".." / "secret.txt")
        ]
        message = await life.hears("see")

    assert [one["type"] for one in told] == ["ack", "error", "error"]
    assert life.heard == [message]
    assert Path(message.media[0]).read_text(encoding="utf-8") == "hello"


@pytest.mark.skipif(os.name != "posix", reason="links are for everybody there only")
@pytest.mark.parametrize("at", ["file", "folder"])
async def test_a_link_put_in_place_of_a_checked_file_is_not_followed(tmp_path, at):
    (shared := tmp_path / "shared").mkdir()
    (inner := shared / "inner").mkdir()
    (outside := tmp_path / "outside").mkdir()
    for folder in (inner, outside):
        (folder / "note.txt").write_text(folder.name, encoding="utf-8")
    chunks = await open_attachment(Payload(path=str(inner / "note.txt")), [str(shared)])
    if at == "file":
        (inner / "note.txt").unlink()
        (inner / "note.txt").symlink_to(outside / "note.txt")
    else:
        inner.rename(shared / "was-here")
        inner.symlink_to(outside)

    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        _ = [chunk async for chunk in chunks()]


async def test_a_file_is_fetched_in_parts_by_the_client_it_was_for(platform, tmp_path):
    data = bytes(range(256)) * 2500
    (tmp_path / "data.bin").write_bytes(data)
    async with (
        serving(platform, tmp_path, allow_from=["*"]) as life,
        client(platform) as wire,
        client(platform, "bert") as other,
    ):
        await life.posted(ANNA, "here", media=[str(tmp_path / "data.bin")])
        (told,) = (await wire.next())["files"]
        got = b""
        while len(got) < told["size"]:
            part = await wire.asked({"type": "fetch", "file": told["file"], "offset": len(got)})
            got += base64.b64decode(part["data"])
        beyond = await wire.asked({"type": "fetch", "file": told["file"], "offset": len(data) + 1})
        stolen = await other.asked({"type": "fetch", "file": told["file"]})

    assert (told["name"], told["kind"], told["size"]) == ("data.bin", "file", len(data))
    assert got == data
    assert beyond["type"] == stolen["type"] == "error"
