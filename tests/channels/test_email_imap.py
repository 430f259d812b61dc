"""The connection to a mailbox: early news, cancelled waits, and answers of servers in their own ways."""

import asyncio
import base64
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from nanobot.channels.email.receive import Mailbox, open_mailbox
from nanobot.channels.email.settings import MailSettings
from tests.fakes.mail_server import FakeMail
from tests.fakes.platform_email import config
from tests.support.eventually import eventually

Answer = Callable[[str], str]


@asynccontextmanager
async def talking_to(answer: Answer, greeting: str = "* OK hi\r\n", **settings: str) -> AsyncIterator[Mailbox]:
    """The mailbox of a server that answers each command (without its tag) as told; `{tag}` is the tag.

    An empty answer stands for one without anything special.
    """
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting.encode())
        with suppress(ConnectionError):
            while line := (await reader.readline()).decode():
                tag, _, command = line.rstrip("\r\n").partition(" ")
                can = "* CAPABILITY IMAP4rev1 IDLE\r\n" if command == "CAPABILITY" else ""
                said = answer(command or tag) or f"{can}{{tag}} OK done\r\n"
                writer.write(said.replace("{tag}", tag).encode())
                if said.startswith("+"):
                    answer((await reader.readline()).decode().rstrip("\r\n"))
                    writer.write(f"{tag} OK done\r\n".encode())
        writer.transport.abort()
        gone.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        account = MailSettings.of(config(FakeMail(), imap_port=port, smtp_port=port, **settings))
        try:
            async with open_mailbox(account) as mailbox:
                yield mailbox
        finally:
            async with asyncio.timeout(5):
                await gone.wait()


async def test_news_that_come_together_with_the_word_to_wait_end_the_waiting():
    fake = FakeMail()
    async with fake.open(), open_mailbox(MailSettings.of(config(fake))) as mailbox, asyncio.timeout(5):
        fake.deliver(b"Subject: one\r\n\r\n1")
        await mailbox.idle(60)

        assert await mailbox.search("ALL") == [1]


async def test_a_wait_without_news_ends_in_time_and_the_connection_is_good():
    fake = FakeMail()
    async with fake.open(), open_mailbox(MailSettings.of(config(fake))) as mailbox, asyncio.timeout(5):
        await mailbox.idle(0.01)
        await mailbox.ping()


async def test_cancelled_wait_ends_the_connection_at_once():
    fake = FakeMail()

    async def wait() -> None:
        async with open_mailbox(MailSettings.of(config(fake))) as mailbox:
            await mailbox.idle(60)

    async with fake.open():
        waiting = asyncio.create_task(wait())
        await eventually(lambda: any(one.idling for one in fake.connections))
        began = time.monotonic()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await eventually(lambda: not fake.connections)

        assert time.monotonic() - began < 5


async def test_server_that_says_nothing_holds_nobody_who_is_cancelled():
    writers: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with (
                asyncio.timeout(0.2),
                open_mailbox(MailSettings.of(config(FakeMail(), imap_port=port, smtp_port=port))),
            ):
                pass
        assert time.monotonic() - began < 5

        writers[0].transport.abort()
        await eventually(lambda: not any(thread.name == "mailbox" for thread in threading.enumerate()))


@pytest.mark.parametrize(
    "body",
    [
        "* 1 FETCH (UID 7 BODY[]<0> {5}\r\nhello)\r\n",
        "* 1 FETCH (BODY[]<0> {5}\r\nhello UID 7)\r\n",
        '* 1 FETCH (UID 7 BODY[]<0> "hello")\r\n',
        "* 2 FETCH (FLAGS (\\Seen) UID 9)\r\n* 1 FETCH (UID 7 BODY[]<0> {5}\r\nhello)\r\n* 3 EXPUNGE\r\n",
    ],
)
async def test_a_mail_comes_in_many_forms(body):
    head = '* 1 FETCH (UID 7 FLAGS (\\Seen) INTERNALDATE " 2-Nov-2026 10:00:00 +0000" RFC822.SIZE 5)\r\n'

    def answer(command: str) -> str:
        return (body if "BODY" in command else head) + "{tag} OK done\r\n" if "FETCH" in command else ""

    async with talking_to(answer) as mailbox:
        mail = await mailbox.fetch(7, largest=100)

    assert mail is not None
    assert (mail.raw, mail.is_seen, mail.is_whole) == (b"hello", True, True)
    assert mail.received_at == 1793613600


async def test_a_mail_that_is_gone_is_none():
    async with talking_to(lambda _: "") as mailbox:
        assert await mailbox.fetch(7, largest=100) is None


@pytest.mark.parametrize(
    ("greeting", "login"),
    [("* BYE too many connections\r\n", ""), ("* OK hi\r\n", "{tag} NO [UNAVAILABLE] too many logins\r\n")],
)
async def test_a_server_that_is_busy_is_tried_again_later(greeting, login):
    with pytest.raises(ConnectionError, match="too many"):
        async with talking_to(lambda command: login if command.startswith("LOGIN") else "", greeting):
            pass


async def test_a_password_in_any_script_and_a_mailbox_of_any_name_reach_the_server():
    asked: list[str] = []

    def answer(command: str) -> str:
        asked.append(command)
        return "+ \r\n" if command.startswith("AUTHENTICATE") else ""

    async with talking_to(answer, imap_password="пароль", imap_mailbox="Entwürfe & mehr"):
        pass

    secret = asked[asked.index("AUTHENTICATE PLAIN") + 1]
    assert base64.b64decode(secret).decode().split("\0")[-1] == "пароль"
    assert 'SELECT "Entw&APw-rfe &- mehr"' in asked
