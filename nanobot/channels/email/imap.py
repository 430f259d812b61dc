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
"""Timeout of one response, or of the next part of a long one."""
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
    """The server refused a command."""


class NoTlsError(NanobotError):
    """The port does not support TLS, or not in this way."""


@dataclass(frozen=True, slots=True)
class Folder:
    """An opened mailbox. UIDs stay valid as long as `validity` is the same."""

    validity: int
    next_uid: int | None


@dataclass(frozen=True, slots=True)
class FetchedMail:
    """A mail from the server."""

    uid: int
    raw: bytes
    size: int
    received: str
    """When it arrived by the server's clock, in its format; empty if unknown."""
    is_seen: bool

    @property
    def is_whole(self) -> bool:
        """Whether all of it was fetched."""
        return len(self.raw) >= self.size


@dataclass(frozen=True, slots=True)
class _Response:
    """One response; `text` has `{n}` in place of each literal."""

    text: bytes
    literals: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return len(self.text) + sum(map(len, self.literals))


@dataclass(frozen=True, slots=True)
class ImapServer:
    """Address and encryption of a mail server."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    """None for an unencrypted connection."""
    starts_plain: bool = False
    """Whether TLS begins on a plain connection (STARTTLS)."""


@asynccontextmanager
async def open_imap(server: ImapServer, touch: Callable[[], None] = lambda: None) -> "AsyncIterator[Imap]":
    """A connection to this server, not logged in yet. `touch` is called whenever it sends something.

    Raises OSError if it is unreachable (ssl.SSLCertVerificationError for a wrong certificate), NoTlsError.
    """
    at_once = None if server.starts_plain else server.tls
    address = f"{server.host}:{server.port}"
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(server.host, server.port, ssl=at_once, limit=_LONGEST_LINE)
    except ssl.SSLCertVerificationError:
        raise
    except ssl.SSLError as error:
        raise NoTlsError(f"{address} answers with something that is not TLS") from error
    except OSError as error:
        raise ConnectionError(f"{address} cannot be reached ({str(error) or 'no answer'})") from error
    imap = Imap(reader, writer, touch)
    try:
        await imap.greet()
        if server.starts_plain and server.tls is not None:
            await imap.start_tls(server.tls, server.host)
        yield imap
        await imap.log_out()
    finally:
        writer.transport.abort()  # a server that is gone would not answer a polite end
        await asyncio.sleep(0)


class Imap:
    """One connection. Everything raises ConnectionError or TimeoutError when it is lost; then only a new one helps."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, touch: Callable[[], None]) -> None:
        self._reader = reader
        self._writer = writer
        self._touch = touch
        self._commands = 0
        self.capabilities: frozenset[str] = frozenset()

    async def greet(self) -> None:
        """Read the greeting and the capabilities."""
        greeting = await self._read()
        if not greeting.text.upper().startswith(b"* OK"):
            raise ConnectionError(f"the mail server refuses connections now: {_for_log(greeting.text)}")
        await self._ask_capabilities()

    async def start_tls(self, tls: ssl.SSLContext, host: str) -> None:
        """Start TLS. Raises NoTlsError if the server does not offer it."""
        if "STARTTLS" not in self.capabilities:
            raise NoTlsError("the server does not offer STARTTLS")
        await self._command(b"STARTTLS")
        reader = asyncio.StreamReader(limit=_LONGEST_LINE)  # plain text after that answer is not trusted
        protocol = asyncio.StreamReaderProtocol(reader)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_S):
            transport = await loop.start_tls(self._writer.transport, protocol, tls, server_hostname=host)
        assert isinstance(transport, asyncio.WriteTransport)  # noqa: S101 as documented; the types do not say so
        protocol.connection_made(transport)
        self._reader, self._writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        await self._ask_capabilities()

    async def log_in(self, username: str, password: str) -> None:
        """Log in. Raises ImapRefusedError if the server rejects the login."""
        if username.isascii() and password.isascii():
            await self._command(b"LOGIN " + _quote(username) + b" " + _quote(password))
        else:
            secret = base64.b64encode(f"\0{username}\0{password}".encode())
            await self._command(b"AUTHENTICATE PLAIN", continues_with=secret)
        await self._ask_capabilities()

    async def introduce(self, name: str, version: str) -> None:
        """Send our name: some services (163.com) require it before opening a mailbox."""
        if "ID" in self.capabilities:
            with suppress(ImapRefusedError):
                await self._command(b"ID (" + b" ".join(map(_quote, ("name", name, "version", version))) + b")")

    async def select(self, mailbox: str) -> Folder:
        """Open a mailbox. Raises ImapRefusedError if there is none of this name."""
        return await self._open(b"SELECT", mailbox)

    async def examine(self, mailbox: str) -> Folder:
        """Open a mailbox read-only. Raises as `select` does."""
        return await self._open(b"EXAMINE", mailbox)

    async def _open(self, command: bytes, mailbox: str) -> Folder:
        responses = await self._command(command + b" " + _quote(_utf7(mailbox)))
        text = b"\n".join(response.text for response in responses)
        validity, next_uid = re.search(rb"\[UIDVALIDITY (\d+)", text), re.search(rb"\[UIDNEXT (\d+)", text)
        return Folder(int(validity[1]) if validity else 0, int(next_uid[1]) if next_uid else None)

    async def search(self, criteria: str) -> list[int]:
        """The UIDs of the matching mails, ascending."""
        uids: set[int] = set()
        for response in await self._command(b"UID SEARCH " + criteria.encode("ascii")):
            if response.text.upper().startswith(b"* SEARCH"):
                uids.update(int(word) for word in response.text.split()[2:] if _UID.fullmatch(word))
        return sorted(uids)

    async def fetch(self, uid: int, *, largest: int, head: int) -> FetchedMail | None:
        """Fetch a mail without flagging it; only its first `head` bytes if it exceeds `largest`. None if deleted."""
        metadata = await self._fetch_items(uid, "FLAGS INTERNALDATE RFC822.SIZE")
        if metadata is None:
            return None
        size = _parse_mail(uid, b"", metadata.text).size
        body = await self._fetch_items(uid, "BODY.PEEK[]" if size <= largest else f"BODY.PEEK[]<0.{head}>")
        if body is None:
            return None
        if body.literals and _BODY_LITERAL.search(body.text):
            raw = body.literals[0]
        else:
            quoted = _QUOTED_BODY.search(body.text)
            raw = re.sub(rb"\\(.)", rb"\1", quoted[1]) if quoted else b""
        return replace(_parse_mail(uid, raw, metadata.text), size=size if size > largest else len(raw))

    async def heads(self, uids: Sequence[int], names: Sequence[str], *, longest: int) -> list[FetchedMail]:
        """Fetch these header lines of these mails, at most `longest` bytes each; deleted mails are left out."""
        items = f"UID FLAGS INTERNALDATE RFC822.SIZE BODY.PEEK[HEADER.FIELDS ({' '.join(names)})]<0.{longest}>"
        mails: dict[int, FetchedMail] = {}
        for response in await self._command(f"UID FETCH {','.join(map(str, uids))} ({items})".encode()):
            uid = int(_group(response.text, rb"\bUID (\d+)") or 0)
            if uid in uids and _HEAD.search(response.text):
                quoted = _QUOTED_HEAD.search(response.text)
                raw = re.sub(rb"\\(.)", rb"\1", quoted[1]) if quoted else b"".join(response.literals[:1])
                mails[uid] = _parse_mail(uid, raw, response.text)
        return [mails[uid] for uid in uids if uid in mails]

    async def mark_seen(self, uid: int) -> None:
        """Flag a mail as seen. Raises ImapRefusedError if the mailbox is read-only."""
        await self._command(f"UID STORE {uid} +FLAGS.SILENT (\\Seen)".encode())

    async def ping(self) -> None:
        """Keep the connection open."""
        await self._command(b"NOOP")

    async def idle(self, seconds: float) -> None:
        """Wait until the mailbox changes or the time is over. After a cancellation the connection cannot be used."""
        tag = self._send(b"IDLE")
        has_news, may_wait = False, False
        while not may_wait:
            response = await self._read()
            has_news = has_news or bool(_NEWS.match(response.text))
            may_wait = response.text.startswith(b"+")
            if response.text.startswith(tag):
                raise ImapRefusedError(_for_log(response.text))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not has_news:
                    response = await self._read(within_s=None)
                    has_news = bool(_NEWS.match(response.text))
        self._writer.write(b"DONE\r\n")
        await self._until(tag)

    async def log_out(self) -> None:
        """Log out, unless the server is slow."""
        with suppress(OSError, ImapRefusedError):
            async with asyncio.timeout(_GOODBYE_S):
                await self._until(self._send(b"LOGOUT"), byes=True)

    async def _ask_capabilities(self) -> None:
        for response in await self._command(b"CAPABILITY"):
            if response.text.upper().startswith(b"* CAPABILITY"):
                self.capabilities = frozenset(response.text.decode("ascii", "replace").upper().split()[2:])

    async def _fetch_items(self, uid: int, items: str) -> _Response | None:
        """The response about this mail; servers insert responses about others whose flags changed."""
        pattern = re.compile(rb"\bUID %d\b" % uid, re.IGNORECASE)
        for response in await self._command(f"UID FETCH {uid} (UID {items})".encode()):
            text = response.text.upper()
            if b" FETCH " in text and pattern.search(text) and (b"BODY" in text) == ("BODY" in items):
                return response
        return None

    async def _command(self, command: bytes, *, continues_with: bytes | None = None) -> list[_Response]:
        return await self._until(self._send(command), continues_with=continues_with)

    def _send(self, command: bytes) -> bytes:
        self._commands += 1
        tag = b"n%d " % self._commands
        self._writer.write(tag + command + b"\r\n")
        return tag

    async def _until(self, tag: bytes, *, continues_with: bytes | None = None, byes: bool = False) -> list[_Response]:
        """All responses up to the end of a command."""
        responses: list[_Response] = []
        size = 0
        while True:
            response = await self._read(byes=byes)
            size += response.size
            if size > _LARGEST_ANSWER:
                raise ConnectionError("the mail server's answer is too long")
            if response.text.startswith(tag):
                status = _STATUS.match(response.text[len(tag) :])
                if status is None or status[1].upper() != b"OK":
                    raise ImapRefusedError(_for_log(response.text[len(tag) :]))
                return [*responses, response]
            if response.text.startswith(b"+") and continues_with is not None:
                self._writer.write(continues_with + b"\r\n")
                continues_with = None
            else:
                responses.append(response)

    async def _read(self, *, within_s: float | None = ANSWER_S, byes: bool = False) -> _Response:
        """Read one response with its literals."""
        text, literals = b"", []
        while True:
            async with asyncio.timeout(within_s):
                try:
                    line = await self._reader.readuntil(b"\n")
                except asyncio.IncompleteReadError:
                    raise ConnectionError("the mail server closed the connection") from None
                except asyncio.LimitOverrunError:
                    raise ConnectionError("the mail server sent a line that is too long") from None
            self._touch()
            text += line
            if len(text) > 2 * _LONGEST_LINE:
                raise ConnectionError("the mail server's response is too long")
            literal = _LITERAL.search(line)
            if literal is None:
                break
            literals.append(await self._literal(int(literal[1])))
        if text.upper().startswith(b"* BYE") and not byes:
            raise ConnectionError(f"the mail server says goodbye: {_for_log(text)}")
        return _Response(text.rstrip(b"\r\n"), tuple(literals))

    async def _literal(self, size: int) -> bytes:
        if size > _LARGEST_LITERAL:
            raise ConnectionError(f"the mail server sends {size} bytes, which is too many")
        data = bytearray()
        while len(data) < size:
            async with asyncio.timeout(ANSWER_S):
                more = await self._reader.read(min(size - len(data), _AT_ONCE))
            if not more:
                raise ConnectionError("the mail server closed the connection")
            self._touch()
            data += more
        return bytes(data)


def _parse_mail(uid: int, raw: bytes, text: bytes) -> FetchedMail:
    """A mail with these bytes, and the metadata in the response."""
    flags = _group(text, rb"FLAGS \(([^)]*)\)").lower()
    received = _group(text, rb'INTERNALDATE "([^"]*)"').decode("ascii", "replace")
    return FetchedMail(uid, raw, int(_group(text, rb"RFC822\.SIZE (\d+)") or 0), received, rb"\seen" in flags)


def _group(text: bytes, pattern: bytes) -> bytes:
    """The first group of the pattern; empty without a match."""
    match = re.search(pattern, text, re.IGNORECASE)
    return bytes(match[1]) if match else b""


def _quote(text: str) -> bytes:
    if any(char in text for char in "\r\n\0"):
        raise ImapRefusedError("a name or password with a line end in it cannot be sent")
    return b'"' + text.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'


def _utf7(name: str) -> str:
    """Encode a mailbox name in modified UTF-7 (RFC 3501, 5.1.3)."""

    def encoded(match: "re.Match[str]") -> str:
        if match.group() == "&":
            return "&-"
        data = base64.b64encode(match.group().encode("utf-16-be")).decode()
        return f"&{data.rstrip('=').replace('/', ',')}-"

    return re.sub(r"&|[^\x20-\x7e]+", encoded, name)


def _for_log(text: bytes) -> str:
    """A response for the log: one line, clipped."""
    return " ".join(text.decode("utf-8", "replace").split())[:200]
