"""Reads a mailbox with imap-tools, each mail once: despite restarts, other mail programs, and a server that renumbers.

imap-tools blocks, so each call runs in a thread. Cancelling one shuts its socket down, which ends the thread.
"""

import asyncio
import imaplib
import logging
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TypeVar

from imap_tools import BaseMailBox, ImapToolsError, MailBox, MailBoxStartTls, MailBoxUnencrypted
from imap_tools.errors import UnexpectedCommandStatusError

from nanobot import __version__
from nanobot.channels.email.message import read_mail
from nanobot.channels.email.settings import MailSettings, untrusted_text
from nanobot.channels.email.store import HOUR_S, MailPosition, MailStore
from nanobot.channels.errors import ChannelSetupError
from nanobot.utils.clock import Clock
from nanobot.utils.storage_error import os_reason

log = logging.getLogger(__name__)
T = TypeVar("T")

LARGEST_MAIL = 64 * 1024 * 1024
"""Larger mails are read only in part, see HEAD."""
MOST_LINES = 1_000_000
"""Mails with more lines are read only in part, too: parsing a million short header lines takes a minute."""
HEAD = 256 * 1024
"""Bytes fetched at once: on a slow line, each part of a large mail is a sign of life."""
_TIMEOUT_S = 30.0
_GOODBYE_S = 1.0
_DAY_S = 86400.0
_UNREAD_S = 7 * _DAY_S
"""How much older than the last check an unread mail may be: it may have been moved from another folder."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TEMPORARY = re.compile(
    r"\[(?:UNAVAILABLE|INUSE|LIMIT|SERVERBUG|OVERQUOTA)\]|too many|try again|temporar", re.IGNORECASE
)
_QUOTED = re.compile(rb'BODY\[[^\]]*\](?:<\d+>)? "((?:[^"\\]|\\.)*)"')
_REFUSED = (imaplib.IMAP4.error, ImapToolsError)


@dataclass(frozen=True, slots=True)
class FetchedMail:
    """A mail from the server."""

    uid: int
    raw: bytes
    size: int
    received: str
    """When it arrived by the server's clock, in its format; empty if unknown."""
    is_seen: bool
    is_whole: bool = True
    """Whether all of it was fetched."""

    @property
    def received_at(self) -> float:
        """When it arrived; infinity if that cannot be parsed, so that it counts as new."""
        return _timestamp(self.received, float("inf"))


@asynccontextmanager
async def open_mailbox(
    settings: MailSettings, touch: Callable[[], None] = lambda: None, *, read_only: bool = False
) -> "AsyncIterator[Mailbox]":
    """Open the configured mailbox; `touch` is called whenever its server answers.

    With `read_only` the server allows no changes. Raises ChannelSetupError if the owner has to act, ConnectionError and
    TimeoutError for temporary failures.
    """
    mailbox = Mailbox(settings, touch)
    try:
        await mailbox.open(read_only=read_only)
        yield mailbox
        await mailbox.log_out()
    finally:
        mailbox.close()


class Mailbox:
    """A folder over one connection. Use it through `open_mailbox`; one call at a time.

    Everything raises ConnectionError or TimeoutError when the connection is lost; then only a new one helps.
    """

    def __init__(self, settings: MailSettings, touch: Callable[[], None]) -> None:
        self._settings = settings
        self._touch = touch
        self._box: BaseMailBox | None = None
        self._is_closed = False
        self.validity = 0
        """UIDs stay valid as long as this is the same."""
        self.next_uid: int | None = None
        self.has_idle = False

    async def open(self, *, read_only: bool) -> None:
        """Connect, log in and open the folder."""
        await _in_thread(lambda: self._open(read_only=read_only))
        self._touch()

    async def search(self, criteria: str) -> list[int]:
        """The UIDs of the matching mails, ascending."""
        return await self._call(
            lambda box: sorted({int(uid) for uid in box.uids(criteria, charset=None) if uid.isdecimal()})
        )

    async def fetch(self, uid: int, *, largest: int) -> FetchedMail | None:
        """Fetch a mail without flagging it; only its first HEAD bytes if it exceeds `largest`. None if deleted."""
        found = await self._fetch([uid], "RFC822.SIZE")
        is_whole = bool(found) and found[0].size <= largest
        raw = bytearray()
        while found:
            parts = await self._fetch([uid], f"BODY.PEEK[]<{len(raw)}.{HEAD}>")
            if not parts:
                break
            raw += parts[0].raw
            if len(parts[0].raw) < HEAD or not is_whole:
                size = len(raw) if is_whole else found[0].size
                return replace(found[0], raw=bytes(raw), size=size, is_whole=is_whole)
        return None

    async def heads(self, uids: Sequence[int], names: Sequence[str], *, longest: int) -> list[FetchedMail]:
        """Fetch these header lines of these mails, at most `longest` bytes each; deleted mails are left out."""
        return await self._fetch(uids, f"RFC822.SIZE BODY.PEEK[HEADER.FIELDS ({' '.join(names)})]<0.{longest}>")

    async def mark_seen(self, uid: int) -> None:
        """Flag a mail as seen, unless the folder is read-only."""
        # not by `BaseMailBox.flag`, which also removes what other programs flagged as deleted
        typ, data = await self._call(lambda box: box.client.uid("STORE", str(uid), "+FLAGS.SILENT", "(\\Seen)"))
        if typ != "OK":
            log.warning("email: a mail cannot be flagged as seen (%s); processing it anyway", data)

    async def ping(self) -> None:
        """Keep the connection open."""
        await self._call(lambda box: box.client.noop())

    async def idle(self, seconds: float) -> None:
        """Wait until the server says something or the time is over."""
        await self._call(lambda box: _idle(box, seconds))

    async def log_out(self) -> None:
        """Log out, unless the server is slow."""
        with suppress(OSError):
            async with asyncio.timeout(_GOODBYE_S):
                await self._call(lambda box: box.logout())

    def close(self) -> None:
        """End the connection and whatever waits for it, now."""
        self._is_closed = True
        if self._box is not None:
            with suppress(OSError):
                self._box.client.socket().shutdown(socket.SHUT_RDWR)
            threading.Thread(target=_shut_down, args=(self._box,), name="mailbox", daemon=True).start()

    async def _call(self, work: Callable[[BaseMailBox], T]) -> T:
        box = self._box
        if box is None or self._is_closed:
            raise ConnectionError("the mailbox is closed")
        try:
            result = await _in_thread(lambda: work(box))
        except imaplib.IMAP4.abort as error:
            raise ConnectionError(f"the connection to the mail server broke ({_reason(error)})") from error
        except _REFUSED as error:
            raise ConnectionError(f"the mail server refused a command ({_reason(error)})") from error
        self._touch()
        return result

    async def _fetch(self, uids: Sequence[int], items: str) -> list[FetchedMail]:
        """Fetch these items of these mails, in this order. Servers add responses about other mails."""
        what = f"(UID FLAGS INTERNALDATE {items})"
        typ, data = await self._call(lambda box: box.client.uid("FETCH", ",".join(map(str, uids)), what))
        if typ != "OK":
            raise ConnectionError(f"the mail server refused a command ({data})")
        responses: list[tuple[bytes, bytes]] = []
        for item in data:
            text, literal = item if isinstance(item, tuple) else (item or b"", b"")
            if re.match(rb"\d+ \(", text):
                responses.append((text, literal))
            elif responses:  # what follows a literal
                responses[-1] = (responses[-1][0] + b" " + text, responses[-1][1])
        mails: dict[int, FetchedMail] = {}
        for text, literal in responses:
            uid = int(_group(rb"\bUID (\d+)", text) or 0)
            if uid in uids and (b"BODY[" in text if "BODY" in items else b"RFC822.SIZE" in text):
                quoted = _QUOTED.search(text)
                raw = re.sub(rb"\\(.)", rb"\1", quoted[1]) if quoted else literal
                received = _group(rb'INTERNALDATE "([^"]*)"', text).decode("ascii", "replace")
                size = int(_group(rb"RFC822\.SIZE (\d+)", text) or 0)
                is_seen = rb"\seen" in _group(rb"FLAGS \(([^)]*)\)", text).lower()
                mails[uid] = FetchedMail(uid, raw, size, received, is_seen)
        return [mails[uid] for uid in uids if uid in mails]

    # -- in a thread

    def _open(self, *, read_only: bool) -> None:
        config, host = self._settings.config, self._settings.config.imap_host
        box = self._box = _connect(self._settings)
        if self._is_closed:  # cancelled meanwhile
            self.close()
        try:
            is_ascii = config.imap_username.isascii() and config.imap_password.isascii()
            (box.login if is_ascii else box.login_utf8)(config.imap_username, config.imap_password, None)
        except imaplib.IMAP4.abort as error:
            raise ConnectionError(f"{host} ended the connection ({_reason(error)})") from error
        except _REFUSED as error:
            if _TEMPORARY.search(_reason(error)):
                raise ConnectionError(f"{host} refuses logins at the moment ({_reason(error)})") from error
            raise ChannelSetupError(
                f"{host} rejected the user name or password ({_reason(error)}). Check channels.email.imapUsername and "
                "channels.email.imapPassword; many services require an app password."
            ) from error
        try:
            capabilities = b" ".join(box.client.capability()[1]).upper().split()
            self.has_idle = b"IDLE" in capabilities
            if b"ID" in capabilities:  # some services (163.com) require it before opening a mailbox
                box.client.xatom("ID", f'("name" "nanobot" "version" "{__version__}")')
            try:
                box.folder.set(config.imap_mailbox, readonly=read_only)
            except imaplib.IMAP4.readonly:
                box.folder.set(config.imap_mailbox, readonly=True)
        except imaplib.IMAP4.abort as error:
            raise ConnectionError(f"{host} ended the connection ({_reason(error)})") from error
        except _REFUSED as error:
            raise ChannelSetupError(
                f"{host} does not open the mailbox {config.imap_mailbox!r} ({_reason(error)}). "
                "Check channels.email.imapMailbox."
            ) from error
        self.validity = int(box.client.response("UIDVALIDITY")[1][0] or 0)
        self.next_uid = int(box.client.response("UIDNEXT")[1][0] or 0) or None


def _connect(settings: MailSettings) -> BaseMailBox:
    config, tls = settings.config, settings.imap_tls
    address = f"{config.imap_host}:{config.imap_port}"
    try:
        if tls is None:
            return MailBoxUnencrypted(config.imap_host, config.imap_port, _TIMEOUT_S)
        kind = MailBox if config.imap_use_ssl else MailBoxStartTls
        return kind(config.imap_host, config.imap_port, timeout=_TIMEOUT_S, ssl_context=tls)
    except ssl.SSLCertVerificationError as error:
        raise ChannelSetupError(untrusted_text(config.imap_host, "imapHost", error)) from error
    except (ssl.SSLError, ValueError, *_REFUSED) as error:
        # ValueError and "not supported" (which have no type of their own): there is no STARTTLS
        if not isinstance(error, ssl.SSLError | ValueError) and "not supported" not in str(error):
            raise ConnectionError(f"{address} refuses connections now ({_reason(error)})") from error
        raise ChannelSetupError(
            f"The mailbox cannot be read by TLS: {address} does not answer with it ({_reason(error)}). Check "
            "channels.email.imapPort and imapUseSsl; 993 goes with true, 143 with false."
        ) from error
    except OSError as error:
        raise ConnectionError(f"{address} cannot be reached ({os_reason(error)})") from error


def _idle(box: BaseMailBox, seconds: float) -> None:
    box.idle.start()  # type: ignore[no-untyped-call]
    connection = box.client.socket()
    timeout = connection.gettimeout()
    connection.settimeout(0)
    try:
        has_news = bool(box.client.readline())  # `poll` sees only the socket, not what came with the confirmation
    except OSError:
        has_news = False
    finally:
        connection.settimeout(timeout)
    if not has_news:
        box.idle.poll(seconds)
    box.idle.stop()  # type: ignore[no-untyped-call]


def _shut_down(box: BaseMailBox) -> None:
    with suppress(OSError, *_REFUSED):
        box.client.shutdown()


async def _in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a daemon thread: nothing waits for one that hangs, not even the end of the process."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # so that it cannot be cancelled any more

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="mailbox", daemon=True).start()
    return await asyncio.wrap_future(done)


def _group(pattern: bytes, text: bytes) -> bytes:
    """The first group of the pattern; empty without a match."""
    match = re.search(pattern, text)
    return bytes(match[1]) if match else b""


def _reason(error: BaseException) -> str:
    """What the server said: one line, clipped."""
    said = error.command_result[1] if isinstance(error, UnexpectedCommandStatusError) else error.args
    words = (word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word) for word in said)
    return " ".join(" ".join(words).split())[:200]


ProcessMail = Callable[[FetchedMail], Awaitable[bool]]
"""Processes a mail. Returns whether to flag it as seen. If it raises, the mail is read again later."""


class MailFolder:
    """The new mails of a mailbox.

    A mail counts as read when `process` has returned. Only then is it flagged as seen and the position saved.
    """

    def __init__(self, mailbox: Mailbox, store: MailStore, clock: Clock, name: str, *, mark_seen: bool = True) -> None:
        """`name` identifies the folder in the store, including its account."""
        self._mailbox = mailbox
        self._store = store
        self._clock = clock
        self._name = name
        self._mark_seen = mark_seen

    async def begin(self, process: ProcessMail) -> MailPosition:
        """Process the mails before the position from which `look` continues, and return that position.

        In a folder never read before these are the unread mails since yesterday: an old mailbox is not answered. In a
        renumbered folder they are all mails from a day before the last check on; the journal drops duplicates. A folder
        whose next number is below our position counts as renumbered: it was restored, or had reported wrong numbers.
        """
        validity, next_uid = self._mailbox.validity, self._mailbox.next_uid
        saved = await self._store.position(self._name)
        is_behind = saved is not None and next_uid is not None and saved.last_uid >= next_uid
        if saved is not None and saved.validity == validity and not is_behind:
            return saved
        end = next_uid - 1 if next_uid else max(await self._mailbox.search("ALL"), default=0)
        now = self._now()
        if saved is None:
            uids = await self._mailbox.search(f"UNSEEN SINCE {imap_day(now - _DAY_S)}")
            log.info(
                "email: first check of this mailbox: %d unread since yesterday; older mails are ignored", len(uids)
            )
        else:
            uids = await self._mailbox.search(f"SINCE {imap_day(saved.checked_at - _DAY_S)}")
            log.info("email: the server has renumbered this mailbox; checking %d recent mails again", len(uids))
        since = (saved.checked_at if saved is not None else now) - 2 * _DAY_S
        for uid in uids:
            await self._process(uid, since, since, process)
        position = MailPosition(validity, max([end, *uids]), now)
        await self._store.save_position(self._name, position)
        return position

    async def look(self, position: MailPosition, process: ProcessMail) -> MailPosition:
        """Process the new mails. Return the new position."""
        uids = await self._mailbox.search(f"UID {position.last_uid + 1}:*")  # `*` is the last mail, however old
        for uid in uids:
            if uid > position.last_uid:
                await self._process(uid, position.checked_at - _DAY_S, position.checked_at - _UNREAD_S, process)
                position = replace(position, last_uid=uid)
                await self._store.save_position(self._name, position)
        now = self._now()
        if now - position.checked_at > HOUR_S:
            position = replace(position, checked_at=now)
            await self._store.save_position(self._name, position)
        return position

    async def wait(self, *, poll_s: float, longest_silence_s: float) -> None:
        """Wait until there may be new mails. Pings the server meanwhile."""
        if self._mailbox.has_idle:
            await self._mailbox.idle(longest_silence_s)
            return
        left_s = poll_s
        while left_s > 0:
            await asyncio.sleep(min(left_s, longest_silence_s))
            left_s -= longest_silence_s
            await self._mailbox.ping()

    async def _process(self, uid: int, since: float, unread_since: float, process: ProcessMail) -> None:
        mail = await self._mailbox.fetch(uid, largest=LARGEST_MAIL)
        if mail is None:
            return  # deleted meanwhile
        if await asyncio.to_thread(mail.raw.count, b"\n") > MOST_LINES:
            mail = replace(mail, raw=mail.raw[:HEAD], is_whole=False)
        oldest = since if mail.is_seen else unread_since
        if mail.received_at < oldest and await asyncio.to_thread(_written_at, mail) < oldest:
            log.warning(
                "email: a mail that arrived %s is older than the last check of the mailbox, and is not answered. "
                "To get an answer, send it again.",
                mail.received[:40],
            )
            return
        if await process(mail) and self._mark_seen and not mail.is_seen:
            await self._mailbox.mark_seen(uid)

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _written_at(mail: FetchedMail) -> float:
    """When it was sent by its own Date; 0 without one. Used in case the server's clock is wrong."""
    return _timestamp(read_mail(mail.raw[:HEAD]).headers.text("Date"), 0.0)


def _timestamp(date: str, default: float) -> float:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return default


def imap_day(at: float) -> str:
    """The date of a timestamp in the format of IMAP searches."""
    day = datetime.fromtimestamp(0, UTC) + timedelta(seconds=max(at, 0))
    return f"{day.day}-{_MONTHS[day.month - 1]}-{day.year}"
