"""A mail server on loopback: the IMAP that reads a mailbox (RFC 3501, 2177, 2971), the SMTP that sends (RFC 5321).

It knows the commands a mail program needs, says BAD to all others and to those that come at the wrong time, and breaks
on demand. `deliver` puts a mail into its one mailbox; `sent` is what it took for others.
"""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from functools import cached_property

USER = "bot@bot.test"
PASSWORD = 'an "app" password\\'
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass
class StoredMail:
    """A mail in the mailbox."""

    uid: int
    raw: bytes
    received: datetime
    flags: set[str] = field(default_factory=set)


@dataclass
class SentMail:
    """A mail that was handed over to be sent."""

    sender: str
    to: list[str]
    raw: bytes

    @cached_property
    def message(self) -> EmailMessage:
        """As a mail program reads it."""
        found = message_from_bytes(self.raw, policy=policy.default)
        assert isinstance(found, EmailMessage)
        return found

    @cached_property
    def text(self) -> str:
        """Its plain words."""
        body = self.message.get_body(("plain",))
        return "" if body is None else str(body.get_content()).replace("\r\n", "\n").rstrip("\n")


class Connection:
    """One client. Mute, it hears and says nothing."""

    def __init__(self, server: "FakeMail", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.reader = reader
        self.writer = writer
        self.mute = False
        self.user = ""
        self.selected = False
        self.only_looks = False
        self.told = 0
        """How many mails it knows of."""
        self.idling = False

    def say(self, text: str | bytes) -> None:
        if not self.mute and not self.writer.is_closing():
            self.writer.write(text.encode() if isinstance(text, str) else text)

    async def line(self) -> str:
        """The next line; raises ConnectionError at the end."""
        raw = await self.reader.readline()
        if not raw:
            raise ConnectionError
        return raw.decode("utf-8", "surrogateescape").rstrip("\r\n")

    def news(self) -> str:
        """What has to be said about the mailbox before anything else."""
        count = len(self.server.mails)
        if not self.selected or count == self.told:
            return ""
        self.told = count
        return f"* {count} EXISTS\r\n"


class FakeMail:
    """One account."""

    def __init__(self) -> None:
        self.password = PASSWORD
        self.mails: list[StoredMail] = []
        self.sent: list[SentMail] = []
        self.validity = 1
        self.next_uid = 1
        self.capabilities = "IMAP4rev1 ID IDLE"
        self.wants_id = False
        """Whether no mailbox is opened for a client that did not say what it is, as at 163.com."""
        self.pause_s = 0.0
        """Between the parts of a mail, as on a slow line."""
        self.refusals: list[str] = []
        """What the next recipients are answered with."""
        self.commands: list[str] = []
        self.connections: set[Connection] = set()
        self.imap_port = 0
        self.smtp_port = 0
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["FakeMail"]:
        """Serve until the end of the block."""
        await self.listen()
        try:
            yield self
        finally:
            await self.vanish()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def listen(self) -> None:
        """Accept connections, at the same ports as before."""
        imap = await asyncio.start_server(self._accept(self._imap), "127.0.0.1", self.imap_port)
        smtp = await asyncio.start_server(self._accept(self._smtp), "127.0.0.1", self.smtp_port)
        self._servers = [imap, smtp]
        self.imap_port, self.smtp_port = (one.sockets[0].getsockname()[1] for one in self._servers)

    async def vanish(self) -> None:
        """Accept nobody, and cut off who is there."""
        for server in self._servers:
            server.close()
        self._servers = []
        self.cut()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """End every connection, without a word."""
        for one in self.connections:
            one.writer.transport.abort()

    def deliver(self, raw: bytes, *, age_s: float = 0, seen: bool = False) -> StoredMail:
        """A mail comes in."""
        mail = StoredMail(
            self.next_uid, raw, datetime.now(UTC) - timedelta(seconds=age_s), {"\\Seen"} if seen else set()
        )
        self.next_uid += 1
        self.mails.append(mail)
        for one in self.connections:
            if one.idling:
                one.say(one.news())
        return mail

    def renumber(self) -> None:
        """As servers do that rebuilt an index: every UID is another, and the validity with them."""
        self.validity += 1
        for number, mail in enumerate(self.mails, 1):
            mail.uid = number
        self.next_uid = len(self.mails) + 1

    def _accept(
        self, serve: Callable[[Connection], Awaitable[None]]
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        async def run(connection: Connection) -> None:
            try:
                await serve(connection)
            except ConnectionError:
                pass
            finally:
                self.connections.discard(connection)
                connection.writer.transport.abort()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = Connection(self, reader, writer)
            self.connections.add(connection)
            task = asyncio.get_running_loop().create_task(run(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return accept

    # -- IMAP

    async def _imap(self, to: Connection) -> None:
        to.say("* OK fake mail ready\r\n")
        named = False
        while True:
            tag, _, rest = (await to.line()).partition(" ")
            verb, _, told = rest.partition(" ")
            if verb.upper() == "UID":
                verb, _, told = told.partition(" ")
                verb = f"UID {verb}"
            verb = verb.upper()
            self.commands.append(f"{verb} {told}" if verb not in ("LOGIN", "AUTHENTICATE") else verb)
            match verb:
                case "CAPABILITY":
                    to.say(f"* CAPABILITY {self.capabilities}\r\n{tag} OK done\r\n")
                case "ID":
                    named = True
                    to.say(f'* ID ("name" "fake")\r\n{tag} OK done\r\n')
                case "LOGIN" if self._may_log_in(told):
                    to.user = USER
                    to.say(f"{tag} OK welcome\r\n")
                case "LOGIN":
                    to.say(f"{tag} NO [AUTHENTICATIONFAILED] Authentication failed.\r\n")
                case "LOGOUT":
                    to.say(f"* BYE see you\r\n{tag} OK done\r\n")
                    return
                case "SELECT" | "EXAMINE" if to.user and told != '"INBOX"':
                    to.say(f"{tag} NO [NONEXISTENT] there is no such mailbox\r\n")
                case "SELECT" | "EXAMINE" if to.user and self.wants_id and not named:
                    to.say(f"{tag} NO SELECT Unsafe Login. Please contact the service\r\n")
                case "SELECT" | "EXAMINE" if to.user:
                    to.selected, to.told, to.only_looks = True, len(self.mails), verb == "EXAMINE"
                    mode = "READ-ONLY" if to.only_looks else "READ-WRITE"
                    to.say(
                        f"* FLAGS (\\Seen)\r\n* {to.told} EXISTS\r\n* OK [UIDVALIDITY {self.validity}] ok\r\n"
                        f"* OK [UIDNEXT {self.next_uid}] ok\r\n{tag} OK [{mode}] done\r\n"
                    )
                case "NOOP":
                    to.say(f"{to.news()}{tag} OK done\r\n")
                case "UID SEARCH" if to.selected:
                    found = " ".join(str(one.uid) for one in self._found(told))
                    to.say(f"* SEARCH {found}\r\n{to.news()}{tag} OK done\r\n")
                case "UID FETCH" if to.selected:
                    for part in self._fetched(told, only_looks=to.only_looks):
                        if "BODY.PEEK[]" in told:
                            await asyncio.sleep(self.pause_s)
                        to.say(part)
                    to.say(f"{tag} OK done\r\n")
                case "UID STORE" if to.selected and to.only_looks:
                    to.say(f"{tag} NO the mailbox is open to be looked at\r\n")
                case "UID STORE" if to.selected:
                    uid, _, flags = told.partition(" ")
                    for mail in self.mails:
                        if mail.uid == int(uid) and flags in ("+FLAGS.SILENT (\\Seen)", "+FLAGS (\\Seen)"):
                            mail.flags.add("\\Seen")
                    to.say(f"{tag} OK done\r\n")
                case "IDLE" if to.selected and "IDLE" in self.capabilities:
                    to.say(f"+ idling\r\n{to.news()}")
                    to.idling = True
                    done = await to.line()
                    to.idling = False
                    to.say(f"{tag} OK done\r\n" if done == "DONE" else f"{tag} BAD expected DONE\r\n")
                case _:
                    to.say(f"{tag} BAD not now, or not known\r\n")

    def _may_log_in(self, told: str) -> bool:
        words = [re.sub(r"\\(.)", r"\1", one) for one in re.findall(r'"((?:[^"\\]|\\.)*)"', told)]
        return words == [USER, self.password]

    def _found(self, criteria: str) -> list[StoredMail]:
        words = re.findall(r"[()]|[^\s()]+", criteria)
        fits = self._key(words)
        assert not words, f"more than one search key: {words}"
        return [mail for mail in self.mails if fits(mail)]

    def _key(self, words: list[str]) -> Callable[[StoredMail], bool]:
        """The first search key of these words (RFC 3501, 6.4.4), which are removed."""
        match words.pop(0):
            case "(":
                keys = []
                while words[0] != ")":
                    keys.append(self._key(words))
                del words[0]
                return lambda mail: all(key(mail) for key in keys)
            case "OR":
                one, other = self._key(words), self._key(words)
                return lambda mail: one(mail) or other(mail)
            case "ALL":
                return lambda mail: True
            case "UNSEEN":
                return lambda mail: "\\Seen" not in mail.flags
            case "SINCE":
                day = _day(words.pop(0))
                return lambda mail: mail.received >= day
            case "SENTSINCE":
                sent_day = _day(words.pop(0))
                return lambda mail: (sent := _sent(mail.raw)) is not None and sent >= sent_day
            case "UID":
                uids = self._uids(words.pop(0))
                return lambda mail: mail.uid in uids
        raise AssertionError(f"an unknown search key before {words}")

    def _uids(self, told: str) -> set[int]:
        """A sequence set; `*` is the last mail."""
        last = max((mail.uid for mail in self.mails), default=0)
        uids = set[int]()
        for part in told.split(","):
            first, end = (last if one == "*" else int(one) for one in (part.split(":") * 2)[:2])
            uids |= set(range(min(first, end), max(first, end) + 1))
        return uids

    def _fetched(self, told: str, *, only_looks: bool) -> list[str | bytes]:
        uids, _, what = told.partition(" ")
        wanted = self._uids(uids)
        said: list[str | bytes] = []
        for number, mail in enumerate(self.mails, 1):
            if mail.uid in wanted:
                said += self._told(number, mail, what, only_looks=only_looks)
        return said

    @staticmethod
    def _told(number: int, mail: StoredMail, what: str, *, only_looks: bool) -> list[str | bytes]:
        day = mail.received
        date = f"{day.day:2d}-{MONTHS[day.month - 1]}-{day.year} {day:%H:%M:%S} +0000"
        about = {
            "UID": f"UID {mail.uid}",
            "FLAGS": f"FLAGS ({' '.join(mail.flags)})",
            "INTERNALDATE": f'INTERNALDATE "{date}"',
            "RFC822.SIZE": f"RFC822.SIZE {len(mail.raw)}",
        }
        head = f"* {number} FETCH ({' '.join(about[one] for one in re.findall(r'[A-Z0-9.]+', what) if one in about)}"
        if "BODY[]" in what and not only_looks:  # to ask without a peek is to have read it
            mail.flags.add("\\Seen")
        if body := re.search(r"BODY(?:\.PEEK)?(\[(?:HEADER)?\])(?:<(\d+)\.(\d+)>)?", what):
            data = mail.raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if "HEADER" in body[1] else mail.raw
            start, size = int(body[2] or 0), int(body[3] or len(data))
            data = data[start : start + size]
            origin = f"<{start}>" if body[2] else ""
            return [f"{head} BODY{body[1]}{origin} {{{len(data)}}}\r\n", data, ")\r\n"]
        return [f"{head})\r\n"]

    # -- SMTP

    async def _smtp(self, to: Connection) -> None:
        to.say("220 fake mail ready\r\n")
        sender, recipients = "", list[str]()
        while True:
            line = await to.line()
            verb, _, told = line.partition(" ")
            match verb.upper():
                case "EHLO":
                    to.say("250-fake\r\n250-SIZE 30000000\r\n250-8BITMIME\r\n250 AUTH PLAIN\r\n")
                case "AUTH":
                    words = base64.b64decode(told.partition(" ")[2]).decode().split("\0")
                    to.user = USER if words == ["", USER, self.password] else ""
                    to.say("235 welcome\r\n" if to.user else "535 5.7.8 authentication failed\r\n")
                case "MAIL" if not to.user:
                    to.say("530 5.7.0 log in first\r\n")
                case "MAIL":
                    sender, recipients = _address(told), []
                    to.say("250 ok\r\n")
                case "RCPT" if self.refusals:
                    to.say(f"{self.refusals.pop(0)}\r\n")
                case "RCPT" if sender:
                    recipients.append(_address(told))
                    to.say("250 ok\r\n")
                case "DATA" if recipients:
                    to.say("354 go on\r\n")
                    lines = []
                    while (raw := await to.reader.readline()) != b".\r\n":
                        if not raw:
                            raise ConnectionError
                        lines.append(raw.removeprefix(b".") if raw.startswith(b"..") else raw)
                    self.sent.append(SentMail(sender, recipients, b"".join(lines)))
                    to.say("250 taken\r\n")
                case "RSET" | "NOOP":
                    sender, recipients = "", []
                    to.say("250 ok\r\n")
                case "QUIT":
                    to.say("221 bye\r\n")
                    return
                case "DATA" | "RCPT":
                    to.say("503 not now\r\n")
                case _:
                    to.say("502 not known\r\n")


def _day(told: str) -> datetime:
    day, month, year = told.split("-")
    return datetime(int(year), MONTHS.index(month) + 1, int(day), tzinfo=UTC)


def _sent(raw: bytes) -> datetime | None:
    """When a mail was sent by its own Date, if it has one."""
    date = message_from_bytes(raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")["Date"]
    return parsedate_to_datetime(date).replace(tzinfo=UTC) if date else None


def _address(told: str) -> str:
    found = re.search(r"<([^>]*)>", told)
    return found[1] if found else ""
