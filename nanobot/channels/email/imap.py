"""The little of IMAP that reading a mailbox takes (RFC 3501, IDLE of RFC 2177, ID of RFC 2971), on asyncio.

A client of its own, because news that comes in the same packet as the server's "+ idling" must wake us up, a wait must
end when it is cancelled, and a server that says nothing must not hold a thread.
"""

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from nanobot.errors import NanobotError

ANSWER_S = 30.0
"""How long a server may take for one answer, or for the next stretch of a long one."""
_GOODBYE_S = 1.0
_LONGEST_LINE = 4 * 1024 * 1024
_LARGEST_LITERAL = 128 * 1024 * 1024
_LARGEST_ANSWER = 2 * _LARGEST_LITERAL
_AT_ONCE = 64 * 1024

_LITERAL = re.compile(rb"\{(\d{1,12})\+?\}\r?\n\Z")
_UID = re.compile(rb"[1-9]\d{0,9}")
_STATUS = re.compile(rb"(OK|NO|BAD)\b ?(.*)", re.IGNORECASE | re.DOTALL)
_NEWS = re.compile(rb"\* \d+ (?:EXISTS|RECENT)\b", re.IGNORECASE)
_QUOTED_BODY = re.compile(rb'BODY\[\](?:<\d+>)? "((?:[^"\\]|\\.)*)"', re.IGNORECASE)
_HEAD = re.compile(rb"BODY\[HEADER", re.IGNORECASE)
_QUOTED_HEAD = re.compile(rb'BODY\[HEADER[^\]]*\](?:<\d+>)? "((?:[^"\\]|\\.)*)"', re.IGNORECASE)
_BODY_LITERAL = re.compile(rb"BODY\[\](?:<\d+>)? \{", re.IGNORECASE)


class ImapRefusedError(NanobotError):
    """The server understood, and said no."""


class NoTlsError(NanobotError):
    """TLS does not begin at this port in this way."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A mailbox as it was opened: UIDs mean what they meant as long as `validity` is the same."""

    validity: int
    next_uid: int | None


@dataclass(frozen=True, slots=True)
class FetchedMail:
    """A mail as the server keeps it."""

    uid: int
    raw: bytes
    size: int
    received: str
    """The server's own time of it, as it writes times; empty where it gave none."""
    is_seen: bool

    @property
    def is_whole(self) -> bool:
        """Whether all of it was fetched."""
        return len(self.raw) >= self.size


@dataclass(frozen=True, slots=True)
class _Response:
    """One response; `text` has `{n}` where each of its literals stood."""

    text: bytes
    literals: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """How many bytes it is."""
        return len(self.text) + sum(map(len, self.literals))


@dataclass(frozen=True, slots=True)
class ImapServer:
    """Where a mailbox is, and how the way there is kept from other eyes."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    """None: nothing is hidden."""
    starts_plain: bool = False
    """Whether TLS begins on a plain connection (STARTTLS)."""


@asynccontextmanager
async def open_imap(server: ImapServer, sign: Callable[[], None] = lambda: None) -> "AsyncIterator[Imap]":
    """A connection to this server, not logged in yet. `sign` is called whenever it says something.

    Raises OSError where it is out of reach (ssl.SSLCertVerificationError where it is not who it says), NoTlsError. At
    the end it is closed, however it ended.
    """
    at_once = None if server.starts_plain else server.tls
    place = f"{server.host}:{server.port}"
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(server.host, server.port, ssl=at_once, limit=_LONGEST_LINE)
    except ssl.SSLCertVerificationError:
        raise
    except ssl.SSLError as error:
        raise NoTlsError(f"{place} answers with something that is not TLS") from error
    except OSError as error:
        raise ConnectionError(f"{place} cannot be reached ({str(error) or 'no answer'})") from error
    imap = Imap(reader, writer, sign)
    try:
        await imap.greet()
        if server.starts_plain and server.tls is not None:
            await imap.start_tls(server.tls, server.host)
        yield imap
        await imap.say_goodbye()
    finally:
        writer.transport.abort()  # a server that is gone would not answer a polite end
        await asyncio.sleep(0)


class Imap:
    """One connection. Everything raises ConnectionError or TimeoutError when it is lost; then only a new one helps."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sign: Callable[[], None]) -> None:
        self._reader = reader
        self._writer = writer
        self._sign = sign
        self._commands = 0
        self.capabilities: frozenset[str] = frozenset()

    async def greet(self) -> None:
        """Hear the server's first word, and what it can do."""
        greeting = await self._read()
        if not greeting.text.upper().startswith(b"* OK"):
            raise ConnectionError(f"the mail server refuses connections now: {_shown(greeting.text)}")
        await self._ask_capabilities()

    async def start_tls(self, tls: ssl.SSLContext, host: str) -> None:
        """From here on nobody reads along. Raises NoTlsError where the server does not offer it."""
        if "STARTTLS" not in self.capabilities:
            raise NoTlsError("the server does not offer STARTTLS")
        await self._command(b"STARTTLS")
        reader = asyncio.StreamReader(limit=_LONGEST_LINE)  # what came behind that answer is nobody's word
        protocol = asyncio.StreamReaderProtocol(reader)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_S):
            hidden = await loop.start_tls(self._writer.transport, protocol, tls, server_hostname=host)
        assert isinstance(hidden, asyncio.WriteTransport)  # noqa: S101 so says its page; the types do not
        protocol.connection_made(hidden)
        self._reader, self._writer = reader, asyncio.StreamWriter(hidden, protocol, reader, loop)
        await self._ask_capabilities()

    async def log_in(self, username: str, password: str) -> None:
        """Say who we are. Raises ImapRefusedError where the server does not believe it."""
        if username.isascii() and password.isascii():
            await self._command(b"LOGIN " + _quoted(username) + b" " + _quoted(password))
        else:
            secret = base64.b64encode(f"\0{username}\0{password}".encode())
            await self._command(b"AUTHENTICATE PLAIN", continues_with=secret)
        await self._ask_capabilities()

    async def introduce(self, name: str, version: str) -> None:
        """Tell which program this is: some services (163.com) open no mailbox before."""
        if "ID" in self.capabilities:
            with suppress(ImapRefusedError):
                await self._command(b"ID (" + b" ".join(map(_quoted, ("name", name, "version", version))) + b")")

    async def select(self, mailbox: str) -> Folder:
        """Open a mailbox. Raises ImapRefusedError where there is none of that name."""
        return await self._open(b"SELECT", mailbox)

    async def examine(self, mailbox: str) -> Folder:
        """Open it only to look: nothing done on this connection changes a flag in it. Raises as `select`."""
        return await self._open(b"EXAMINE", mailbox)

    async def _open(self, how: bytes, mailbox: str) -> Folder:
        said = b"\n".join(one.text for one in await self._command(how + b" " + _quoted(_utf7(mailbox))))
        validity, next_uid = re.search(rb"\[UIDVALIDITY (\d+)", said), re.search(rb"\[UIDNEXT (\d+)", said)
        return Folder(int(validity[1]) if validity else 0, int(next_uid[1]) if next_uid else None)

    async def search(self, criteria: str) -> list[int]:
        """The UIDs of the mails that meet these criteria, in their order."""
        found: set[int] = set()
        for one in await self._command(b"UID SEARCH " + criteria.encode("ascii")):
            if one.text.upper().startswith(b"* SEARCH"):
                found.update(int(word) for word in one.text.split()[2:] if _UID.fullmatch(word))
        return sorted(found)

    async def fetch(self, uid: int, *, largest: int, head: int) -> FetchedMail | None:
        """A mail, unread as before; of one above `largest` bytes only its first `head`. None where it is gone."""
        told = await self._fetched(uid, "FLAGS INTERNALDATE RFC822.SIZE")
        if told is None:
            return None
        size = _as_told(uid, b"", told.text).size
        body = await self._fetched(uid, "BODY.PEEK[]" if size <= largest else f"BODY.PEEK[]<0.{head}>")
        if body is None:
            return None
        if body.literals and _BODY_LITERAL.search(body.text):
            raw = body.literals[0]
        else:
            quoted = _QUOTED_BODY.search(body.text)
            raw = re.sub(rb"\\(.)", rb"\1", quoted[1]) if quoted else b""
        return replace(_as_told(uid, raw, told.text), size=size if size > largest else len(raw))

    async def heads(self, uids: Sequence[int], names: Sequence[str], *, longest: int) -> list[FetchedMail]:
        """Of each of these mails the header lines of these names, `longest` bytes at most; who is gone is left out."""
        what = f"UID FLAGS INTERNALDATE RFC822.SIZE BODY.PEEK[HEADER.FIELDS ({' '.join(names)})]<0.{longest}>"
        found: dict[int, FetchedMail] = {}
        for one in await self._command(f"UID FETCH {','.join(map(str, uids))} ({what})".encode()):
            uid = int(_in(one.text, rb"\bUID (\d+)") or 0)
            if uid in uids and _HEAD.search(one.text):
                quoted = _QUOTED_HEAD.search(one.text)
                raw = re.sub(rb"\\(.)", rb"\1", quoted[1]) if quoted else b"".join(one.literals[:1])
                found[uid] = _as_told(uid, raw, one.text)
        return [found[uid] for uid in uids if uid in found]

    async def mark_seen(self, uid: int) -> None:
        """Set its flag. Raises ImapRefusedError where the mailbox may only be read."""
        await self._command(f"UID STORE {uid} +FLAGS.SILENT (\\Seen)".encode())

    async def ping(self) -> None:
        """Ask for nothing, so that the connection stays."""
        await self._command(b"NOOP")

    async def idle(self, seconds: float) -> None:
        """Wait until the mailbox has news, or the time is over. Cancelling leaves the connection good for nothing."""
        tag = self._send(b"IDLE")
        has_news, may_wait = False, False
        while not may_wait:
            said = await self._read()
            has_news = has_news or bool(_NEWS.match(said.text))
            may_wait = said.text.startswith(b"+")
            if said.text.startswith(tag):
                raise ImapRefusedError(_shown(said.text))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not has_news:
                    said = await self._read(within_s=None)
                    has_news = bool(_NEWS.match(said.text))
        self._writer.write(b"DONE\r\n")
        await self._until(tag)

    async def say_goodbye(self) -> None:
        """Log out, if the server is quick about it."""
        with suppress(OSError, ImapRefusedError):
            async with asyncio.timeout(_GOODBYE_S):
                await self._until(self._send(b"LOGOUT"), byes=True)

    async def _ask_capabilities(self) -> None:
        for one in await self._command(b"CAPABILITY"):
            if one.text.upper().startswith(b"* CAPABILITY"):
                self.capabilities = frozenset(one.text.decode("ascii", "replace").upper().split()[2:])

    async def _fetched(self, uid: int, what: str) -> _Response | None:
        """The answer about exactly this mail; servers put in others whose flags changed."""
        asked = re.compile(rb"\bUID %d\b" % uid, re.IGNORECASE)
        for one in await self._command(f"UID FETCH {uid} (UID {what})".encode()):
            text = one.text.upper()
            if b" FETCH " in text and asked.search(text) and (b"BODY" in text) == ("BODY" in what):
                return one
        return None

    async def _command(self, command: bytes, *, continues_with: bytes | None = None) -> list[_Response]:
        return await self._until(self._send(command), continues_with=continues_with)

    def _send(self, command: bytes) -> bytes:
        self._commands += 1
        tag = b"n%d " % self._commands
        self._writer.write(tag + command + b"\r\n")
        return tag

    async def _until(self, tag: bytes, *, continues_with: bytes | None = None, byes: bool = False) -> list[_Response]:
        """Everything the server says until it is done with this command."""
        said: list[_Response] = []
        size = 0
        while True:
            one = await self._read(byes=byes)
            size += one.size
            if size > _LARGEST_ANSWER:
                raise ConnectionError("the mail server's answer is too long")
            if one.text.startswith(tag):
                status = _STATUS.match(one.text[len(tag) :])
                if status is None or status[1].upper() != b"OK":
                    raise ImapRefusedError(_shown(one.text[len(tag) :]))
                return [*said, one]
            if one.text.startswith(b"+") and continues_with is not None:
                self._writer.write(continues_with + b"\r\n")
                continues_with = None
            else:
                said.append(one)

    async def _read(self, *, within_s: float | None = ANSWER_S, byes: bool = False) -> _Response:
        """One response, with what its literals hold."""
        text, literals = b"", []
        while True:
            async with asyncio.timeout(within_s):
                try:
                    line = await self._reader.readuntil(b"\n")
                except asyncio.IncompleteReadError:
                    raise ConnectionError("the mail server closed the connection") from None
                except asyncio.LimitOverrunError:
                    raise ConnectionError("the mail server sent a line that is too long") from None
            self._sign()
            text += line
            if len(text) > 2 * _LONGEST_LINE:
                raise ConnectionError("the mail server's response is too long")
            literal = _LITERAL.search(line)
            if literal is None:
                break
            literals.append(await self._literal(int(literal[1])))
        if text.upper().startswith(b"* BYE") and not byes:
            raise ConnectionError(f"the mail server says goodbye: {_shown(text)}")
        return _Response(text.rstrip(b"\r\n"), tuple(literals))

    async def _literal(self, size: int) -> bytes:
        if size > _LARGEST_LITERAL:
            raise ConnectionError(f"the mail server sends {size} bytes that nobody asked for")
        data = bytearray()
        while len(data) < size:
            async with asyncio.timeout(ANSWER_S):
                more = await self._reader.read(min(size - len(data), _AT_ONCE))
            if not more:
                raise ConnectionError("the mail server closed the connection")
            self._sign()
            data += more
        return bytes(data)


def _as_told(uid: int, raw: bytes, text: bytes) -> FetchedMail:
    """A mail of which these bytes are there, with what the server says of it."""
    flags = _in(text, rb"FLAGS \(([^)]*)\)").lower()
    received = _in(text, rb'INTERNALDATE "([^"]*)"').decode("ascii", "replace")
    return FetchedMail(uid, raw, int(_in(text, rb"RFC822\.SIZE (\d+)") or 0), received, rb"\seen" in flags)


def _in(text: bytes, pattern: bytes) -> bytes:
    """What the pattern's group finds; nothing where it finds none."""
    found = re.search(pattern, text, re.IGNORECASE)
    return bytes(found[1]) if found else b""


def _quoted(text: str) -> bytes:
    if any(char in text for char in "\r\n\0"):
        raise ImapRefusedError("a name or password with a line end in it cannot be sent")
    return b'"' + text.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'


def _utf7(name: str) -> str:
    """A mailbox name as the wire has it (RFC 3501, 5.1.3)."""

    def encoded(found: "re.Match[str]") -> str:
        if found.group() == "&":
            return "&-"
        data = base64.b64encode(found.group().encode("utf-16-be")).decode()
        return f"&{data.rstrip('=').replace('/', ',')}-"

    return re.sub(r"&|[^\x20-\x7e]+", encoded, name)


def _shown(text: bytes) -> str:
    """What the server said, for a log: one line, not too long."""
    return " ".join(text.decode("utf-8", "replace").split())[:200]
