"""The IMAP client: what servers say in their own ways, and what they say too much or never."""

import asyncio
import base64
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from imap_tools import MailBoxUnencrypted

from nanobot.channels.email import imap as imap_module
from nanobot.channels.email.imap import Imap, ImapRefusedError, ImapServer, open_imap
from tests.fakes.mail_server import PASSWORD, USER, FakeMail
from tests.support.eventually import eventually

Answer = Callable[[str], str]


@asynccontextmanager
async def talking_to(answer: Answer, greeting: str = "* OK hi\r\n") -> AsyncIterator[Imap]:
    """A client of a server that answers each command (without its tag) as told; `{tag}` is the tag."""

    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting.encode())
        with suppress(ConnectionError):
            while line := (await reader.readline()).decode():
                tag, _, command = line.rstrip("\r\n").partition(" ")
                can = "* CAPABILITY IMAP4rev1 IDLE\r\n{tag} OK\r\n"
                said = can if command == "CAPABILITY" else answer(command or tag)
                writer.write(said.replace("{tag}", tag).encode())
        writer.transport.abort()
        gone.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            async with open_imap(ImapServer("127.0.0.1", port, None)) as imap:
                yield imap
        finally:
            await gone.wait()


async def test_the_fake_server_is_one_to_a_mail_program_of_somebody_else():
    """What imap-tools cannot talk to is no IMAP server, and would prove nothing about our client."""
    fake = FakeMail()

    def read(port: int) -> list[str]:
        with MailBoxUnencrypted("127.0.0.1", port).login(USER, PASSWORD) as box:
            told = [str(one) for one in box.idle.wait(timeout=5)]
            return [*told, *(found.subject for found in box.fetch("UID 1:*"))]

    async with fake.open():
        reading = asyncio.create_task(asyncio.to_thread(read, fake.imap_port))
        await eventually(lambda: "IDLE " in fake.commands)
        fake.deliver(b"Subject: one\r\n\r\n1")

        assert await reading == ["b'* 1 EXISTS'", "one"]
    assert fake.mails[0].flags == {"\\Seen"}


@pytest.mark.parametrize(
    "said",
    ["+ idling\r\n* 3 EXISTS\r\n", "* 3 EXISTS\r\n+ idling\r\n", "+\r\n* OK still here\r\n* 1 RECENT\r\n"],
)
async def test_news_that_come_together_with_the_word_to_wait_end_the_waiting(said):
    def answer(command: str) -> str:
        return said if command == "IDLE" else "n2 OK done\r\n"

    async with talking_to(answer) as imap, asyncio.timeout(5):
        await imap.idle(60)


async def test_a_wait_without_news_ends_in_time_and_the_connection_is_good():
    def answer(command: str) -> str:
        return {"IDLE": "+ idling\r\n", "DONE": "n2 OK done\r\n"}.get(command, "{tag} OK\r\n")

    async with talking_to(answer) as imap:
        await imap.idle(0.01)
        await imap.ping()


@pytest.mark.parametrize(
    "body",
    [
        "* 1 FETCH (UID 7 BODY[] {5}\r\nhello)\r\n",
        "* 1 FETCH (BODY[] {5}\r\nhello UID 7)\r\n",
        '* 1 FETCH (UID 7 BODY[] "hello")\r\n',
        "* 2 FETCH (FLAGS (\\Seen) UID 9)\r\n* 1 FETCH (UID 7 BODY[] {5}\r\nhello)\r\n* 3 EXPUNGE\r\n",
        "* 1 fetch (uid 7 body[] {5}\r\nhello)\r\n",
    ],
)
async def test_a_mail_comes_in_many_forms(body):
    head = '* 1 FETCH (UID 7 FLAGS (\\Seen) INTERNALDATE " 2-Nov-2026 10:00:00 +0000" RFC822.SIZE 5)\r\n'

    async with talking_to(lambda command: (body if "BODY" in command else head) + "{tag} OK\r\n") as imap:
        mail = await imap.fetch(7, largest=100, head=10)

    assert mail is not None
    assert (mail.raw, mail.is_seen, mail.is_whole, mail.received) == (
        b"hello",
        True,
        True,
        " 2-Nov-2026 10:00:00 +0000",
    )


async def test_of_a_mail_that_is_too_large_only_the_head_is_asked_for():
    asked: list[str] = []

    def answer(command: str) -> str:
        asked.append(command)
        return (
            "* 1 FETCH (UID 7 RFC822.SIZE 500 BODY[]<0> {2}\r\nhe)\r\n{tag} OK\r\n"
            if "BODY" in command
            else ("* 1 FETCH (UID 7 RFC822.SIZE 500)\r\n{tag} OK\r\n")
        )

    async with talking_to(answer) as imap:
        mail = await imap.fetch(7, largest=100, head=2)

    assert asked[-2:] != []
    assert "BODY.PEEK[]<0.2>" in asked[1]
    assert mail is not None
    assert (mail.raw, mail.is_whole) == (b"he", False)


async def test_a_mail_that_is_gone_is_none():
    async with talking_to(lambda _: "{tag} OK\r\n") as imap:
        assert await imap.fetch(7, largest=100, head=10) is None


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("{tag} NO not today\r\n", ImapRefusedError),
        ("{tag} BAD what\r\n", ImapRefusedError),
        ("{tag} HUH\r\n", ImapRefusedError),
        ("* BYE going down\r\n", ConnectionError),
        ("* 1 FETCH (BODY[] {999999999999}\r\n", ConnectionError),
        ("* " + "x" * 5_000_000 + "\r\n", ConnectionError),
    ],
)
async def test_a_server_that_says_no_or_too_much_is_an_error_of_its_kind(said, error):
    with pytest.raises(error):
        async with talking_to(lambda _: said) as imap:
            await imap.ping()


async def test_an_answer_without_end_is_cut_off(monkeypatch):
    monkeypatch.setattr(imap_module, "_LARGEST_ANSWER", 100_000)

    with pytest.raises(ConnectionError, match="too long"):
        async with talking_to(lambda _: "* OK more\r\n" * 20_000) as imap:
            await imap.ping()


async def test_uids_that_cannot_be_are_not_believed():
    said = "* SEARCH 7 0 99999999999 -1 x 12\r\n{tag} OK\r\n"

    async with talking_to(lambda _: said) as imap:
        assert await imap.search("ALL") == [7, 12]


async def test_what_is_said_before_the_connection_is_hidden_counts_for_nothing_behind_it(tmp_path):
    key, ca = _certificate(tmp_path)
    server_side, client_side = (
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH),
        ssl.create_default_context(cafile=ca),
    )
    server_side.load_cert_chain(ca, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"* OK hi\r\n")
        for said in (b"* CAPABILITY STARTTLS\r\nn1 OK\r\n", b"n2 OK\r\n* CAPABILITY FORGED\r\nn3 OK\r\n"):
            await reader.readline()
            writer.write(said)
        await writer.start_tls(server_side)
        with suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(b"* CAPABILITY HONEST\r\n" + line.split()[0] + b" OK\r\n")

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with open_imap(ImapServer("127.0.0.1", port, client_side, starts_plain=True)) as imap:
            capabilities = imap.capabilities

    assert capabilities == {"HONEST"}


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A key, and a certificate of 127.0.0.1 that vouches for itself."""
    key, ca = folder / "key.pem", folder / "ca.pem"
    ask = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=mail -addext"
    out = ["subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(ca)]
    subprocess.run(["openssl", *ask.split(), *out], check=True, capture_output=True)
    return key, ca


async def test_a_server_that_is_busy_does_not_want_us_now():
    with pytest.raises(ConnectionError, match="too many"):
        async with talking_to(lambda _: "", greeting="* BYE too many connections\r\n"):
            pass


async def test_no_name_or_password_ends_its_line():
    async with talking_to(lambda _: "{tag} OK\r\n") as imap:
        with pytest.raises(ImapRefusedError, match="line end"):
            await imap.log_in("anna", "secret\r\nn9 DELETE INBOX")


async def test_a_password_in_any_script_and_a_mailbox_of_any_name_reach_the_server():
    asked: list[str] = []

    def answer(command: str) -> str:
        asked.append(command)
        return "+ \r\n" if command.startswith("AUTHENTICATE") else "n2 OK\r\n" if len(asked) == 2 else "{tag} OK\r\n"

    async with talking_to(answer) as imap:
        await imap.log_in("anna", "пароль")
        await imap.select("Entwürfe & mehr")

    assert base64.b64decode(asked[1]).decode() == "\0anna\0пароль"
    assert asked[2] == 'SELECT "Entw&APw-rfe &- mehr"'
