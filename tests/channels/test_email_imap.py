"""The connection to a mailbox: early news, cancelled waits, and answers of servers in their own ways."""

import asyncio
import base64
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from nanobot.channels.email.channel import MailState, new_mails, start_reading
from nanobot.channels.email.mailbox import FetchedMail, Mailbox, in_mailbox
from nanobot.channels.email.settings import MailSettings
from tests.fakes.mail_server import FakeMail
from tests.fakes.platform_email import config
from tests.support.eventually import eventually

T = TypeVar("T")
Answer = Callable[[str], str]


async def talk(answer: Answer, work: Callable[[Mailbox], T], *, greeting: str = "* OK hi\r\n", **settings: str) -> T:
    """Work with the mailbox of a server that answers each command (without its tag) as told; `{tag}` is the tag.

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
            return await in_mailbox(account, work)
        finally:
            async with asyncio.timeout(5):
                await gone.wait()


async def test_news_that_come_together_with_the_word_to_wait_end_the_waiting():
    fake = FakeMail()

    async def deliver() -> None:
        fake.deliver(b"Subject: one\r\n\r\n1")

    def wait(mailbox: Mailbox) -> list[int]:
        mailbox.ask(deliver())
        mailbox.wait(poll_s=60, longest_silence_s=60)
        return mailbox.search("ALL")

    async with fake.open(), asyncio.timeout(5):
        assert await in_mailbox(MailSettings.of(config(fake)), wait) == [1]


async def test_a_mail_that_comes_while_a_folder_is_opened_for_the_first_time_is_no_old_one():
    fake = FakeMail()
    fake.deliver(b"Subject: old\r\n\r\n1", seen=True)

    async def deliver() -> None:
        fake.deliver(b"Subject: new\r\n\r\n2", seen=True)

    def read(mailbox: Mailbox) -> list[int]:
        state = MailState("bot")
        start_reading(mailbox, state)
        mailbox.ask(deliver())
        return [mail.uid for mail in new_mails(mailbox, state, time.time())]

    async with fake.open():
        assert await in_mailbox(MailSettings.of(config(fake)), read) == [2]


async def test_server_that_says_nothing_holds_nobody_who_is_cancelled():
    writers: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await in_mailbox(
                    MailSettings.of(config(FakeMail(), imap_port=port, smtp_port=port)), lambda mailbox: None
                )
        assert time.monotonic() - began < 5

        writers[0].transport.abort()
        await eventually(lambda: not any(thread.name == "mailbox" for thread in threading.enumerate()))


@pytest.mark.parametrize(
    "body",
    [
        "* 1 FETCH (UID 7 FLAGS (\\Seen) RFC822.SIZE 5 BODY[] {5}\r\nhello)\r\n",
        "* 1 FETCH (BODY[] {5}\r\nhello UID 7 FLAGS (\\Seen) RFC822.SIZE 5)\r\n",
        "* 2 FETCH (FLAGS (\\Seen) UID 9)\r\n* 1 FETCH (UID 7 RFC822.SIZE 5 BODY[] {5}\r\nhello)\r\n* 3 EXPUNGE\r\n",
    ],
)
async def test_a_mail_comes_in_many_forms(body):
    def answer(command: str) -> str:
        if "SEARCH" in command:
            return "* SEARCH 7\r\n{tag} OK done\r\n"
        return f"{body}{{tag}} OK done\r\n" if "FETCH" in command.upper() else ""

    def fetch(mailbox: Mailbox) -> FetchedMail | None:
        return next(iter(mailbox.fetch([7])), None)

    mail = await talk(answer, fetch)

    assert mail is not None
    assert (mail.raw, mail.is_whole) == (b"hello", True)


@pytest.mark.parametrize(
    ("greeting", "login"),
    [("* BYE too many connections\r\n", ""), ("* OK hi\r\n", "{tag} NO [UNAVAILABLE] too many logins\r\n")],
)
async def test_a_server_that_is_busy_is_tried_again_later(greeting, login):
    with pytest.raises(ConnectionError, match="too many"):
        await talk(lambda command: login if command.startswith("LOGIN") else "", lambda _: None, greeting=greeting)


async def test_a_password_in_any_script_and_a_mailbox_of_any_name_reach_the_server():
    asked: list[str] = []

    def answer(command: str) -> str:
        asked.append(command)
        return "+ \r\n" if command.startswith("AUTHENTICATE") else ""

    await talk(answer, lambda _: None, imap_password="пароль", imap_mailbox="Entwürfe & mehr")

    secret = asked[asked.index("AUTHENTICATE PLAIN") + 1]
    assert base64.b64decode(secret).decode().split("\0")[-1] == "пароль"
    assert 'SELECT "Entw&APw-rfe &- mehr"' in asked
