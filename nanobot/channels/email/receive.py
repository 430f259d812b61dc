"""Reads a mailbox with imap-tools, each mail once: despite restarts, other mail programs, and a server that renumbers.

imap-tools blocks, so a connection has a thread of its own. Cancelling shuts its socket down, which ends the thread.
"""

import asyncio
import imaplib
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar

from imap_tools import (
    AND,
    OR,
    BaseMailBox,
    ImapToolsError,
    MailBox,
    MailBoxStartTls,
    MailBoxUnencrypted,
    MailMessage,
    UidRange,
)
from imap_tools.errors import UnexpectedCommandStatusError

from nanobot import __version__
from nanobot.channels.email.settings import MailSettings, untrusted_text
from nanobot.channels.email.store import HOUR_S, MailState
from nanobot.channels.errors import ChannelSetupError
from nanobot.utils.storage_error import os_reason

log = logging.getLogger(__name__)
T = TypeVar("T")

LARGEST_MAIL = 64 * 1024 * 1024
"""Of larger mails only the header is read."""
MOST_LINES = 1_000_000
"""Of mails with more lines only the beginning is read: parsing a million short header lines takes a minute."""
_BEGINNING = 256 * 1024
_TIMEOUT_S = 30.0
_DAY_S = 86400.0
_UNREAD_S = 7 * _DAY_S
"""How much older than the last check an unread mail may be: it may have been moved from another folder."""
_TEMPORARY = re.compile(
    r"\[(?:UNAVAILABLE|INUSE|LIMIT|SERVERBUG|OVERQUOTA)\]|too many|try again|temporar", re.IGNORECASE
)
_REFUSED = (imaplib.IMAP4.error, ImapToolsError)


@dataclass(frozen=True, slots=True)
class FetchedMail:
    """A mail from the server."""

    uid: str
    raw: bytes
    size: int
    is_seen: bool
    is_whole: bool = True


class _RawMessage(MailMessage):
    """Leaves parsing to `read_mail`, which limits what a stranger's mail costs."""

    def __init__(self, fetch_data: list[Any]) -> None:
        self.raw = next((bytes(item[1]) for item in reversed(fetch_data) if isinstance(item, tuple)), b"")
        super().__init__([(item[0], b"") if isinstance(item, tuple) else item for item in fetch_data])


async def in_mailbox(
    settings: MailSettings,
    work: "Callable[[Mailbox], T]",
    touch: Callable[[], None] = lambda: None,
    *,
    read_only: bool = False,
) -> T:
    """Open the configured folder and run `work` with it in a thread; `touch` is called whenever its server answers.

    With `read_only` the server allows no changes. Cancelling ends the connection. Raises ChannelSetupError if the owner
    has to act, ConnectionError and TimeoutError for temporary failures, and what `work` raises.
    """
    mailbox = Mailbox(settings, touch)
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # so that it cannot be cancelled any more

    def run() -> None:
        try:
            with mailbox.open(read_only=read_only):
                result = work(mailbox)
            done.set_result(result)
        except BaseException as error:
            done.set_exception(error)

    # a daemon: nothing waits for a thread that hangs, not even the end of the process
    threading.Thread(target=run, name="mailbox", daemon=True).start()
    waiting = asyncio.wrap_future(done)
    try:
        while not waiting.done():
            await asyncio.wait([waiting], timeout=_TIMEOUT_S / 2)
            if mailbox.is_fetching:  # maybe for long; the timeout of the socket ends a dead connection
                touch()
        return waiting.result()
    finally:
        waiting.cancel()
        mailbox.close()


class Mailbox:
    """A folder over one connection. All but `close` is called in its thread."""

    def __init__(self, settings: MailSettings, touch: Callable[[], None]) -> None:
        self._settings = settings
        self._touch = touch
        self._loop = asyncio.get_running_loop()
        self._asked: Future[Any] | None = None
        self._box: BaseMailBox
        self._closed = threading.Event()
        self.is_fetching = False
        self.validity = 0
        """UIDs stay valid as long as this is the same."""
        self.next_uid = 0
        """0 if unknown."""
        self._has_idle = False

    @contextmanager
    def open(self, *, read_only: bool) -> Iterator[None]:
        """Connect, log in and open the folder, until the end of the block."""
        box = self._box = _connect(self._settings)
        try:
            if self._closed.is_set():
                raise ConnectionError("the mailbox is closed")
            self._log_in(box, read_only=read_only)
            self._touch()
            yield
            with suppress(OSError, *_REFUSED):
                box.client.sock.settimeout(1)
                box.logout()
        except imaplib.IMAP4.abort as error:
            raise ConnectionError(f"the connection to the mail server broke ({_reason(error)})") from error
        except _REFUSED as error:
            raise ConnectionError(f"the mail server refused a command ({_reason(error)})") from error
        finally:
            with suppress(OSError, *_REFUSED):
                box.client.shutdown()

    def close(self) -> None:
        """End the connection and whatever waits for it, now."""
        self._closed.set()
        if self._asked is not None:
            self._asked.cancel()
        with suppress(AttributeError, OSError):  # not connected yet, or no longer
            self._box.client.sock.shutdown(socket.SHUT_RDWR)

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this in the event loop and return its result."""
        if self._closed.is_set():
            work.close()
            raise ConnectionError("the mailbox is closed")
        asked = self._asked = asyncio.run_coroutine_threadsafe(work, self._loop)
        if self._closed.is_set():
            asked.cancel()
        result: T = asked.result()
        return result

    def search(self, criteria: object) -> list[int]:
        """The UIDs of the matching mails, ascending."""
        found = self._box.uids(str(criteria), charset=None)
        self._touch()
        return sorted({int(uid) for uid in found if uid.isdecimal()})

    def fetch(self, uids: list[int], *, headers_only: bool = False) -> list[FetchedMail]:
        """Fetch these mails without flagging them; deleted mails are left out."""
        criteria = f"UID {','.join(map(str, uids))}"
        self.is_fetching = True
        messages = self._box.fetch(criteria, None, mark_seen=False, headers_only=headers_only, bulk=len(uids) > 1)
        mails = [
            FetchedMail(message.uid, message.raw, message.size_rfc822, "\\Seen" in message.flags)
            for message in messages
            if isinstance(message, _RawMessage) and message.uid
        ]
        self.is_fetching = False
        self._touch()
        return mails

    def fetch_one(self, uid: int) -> FetchedMail | None:
        """Fetch a mail without flagging it; of one beyond all bounds only the beginning. None if it is deleted."""
        for head in self.fetch([uid], headers_only=True):
            if head.size > LARGEST_MAIL:
                return replace(head, is_whole=False)
            for mail in self.fetch([uid]):
                is_whole = mail.raw.count(b"\n") <= MOST_LINES
                return replace(
                    mail, uid=str(uid), raw=mail.raw if is_whole else mail.raw[:_BEGINNING], is_whole=is_whole
                )
        return None

    def received_at(self, uids: list[int]) -> dict[str, float]:
        """When these mails arrived by the server's clock, as timestamps."""
        lines = self._box.client.uid("FETCH", ",".join(map(str, uids)), "(UID INTERNALDATE)")[1]
        times = {}
        for line in lines:
            uid = re.search(rb"\bUID (\d+)", line or b"")
            if uid and (at := imaplib.Internaldate2tuple(line)):
                times[uid[1].decode()] = time.mktime(at)
        return times

    def mark_seen(self, uid: str) -> None:
        """Flag a mail as seen, unless the folder is read-only."""
        # not by `BaseMailBox.flag`, which also removes what other programs flagged as deleted
        typ, data = self._box.client.uid("STORE", uid, "+FLAGS.SILENT", "(\\Seen)")
        if typ != "OK":
            log.warning("email: a mail cannot be flagged as seen (%s); processing it anyway", data)

    def wait(self, *, poll_s: float, longest_silence_s: float) -> None:
        """Wait until there may be new mails. Asks the server for a sign of life meanwhile."""
        if self._has_idle:
            _idle(self._box, longest_silence_s)
            self._touch()
            return
        while poll_s > 0:
            if self._closed.wait(min(poll_s, longest_silence_s)):
                raise ConnectionError("the mailbox is closed")
            poll_s -= longest_silence_s
            self._box.client.noop()
            self._touch()

    def _log_in(self, box: BaseMailBox, *, read_only: bool) -> None:
        config = self._settings.config
        is_ascii = config.imap_username.isascii() and config.imap_password.isascii()
        with _owner_has_to_act(
            f"{config.imap_host} rejected the user name or password",
            "Check channels.email.imapUsername and channels.email.imapPassword; many services require an app password.",
        ):
            (box.login if is_ascii else box.login_utf8)(config.imap_username, config.imap_password, None)
        capabilities = b" ".join(box.client.capability()[1]).upper().split()
        self._has_idle = b"IDLE" in capabilities
        if b"ID" in capabilities:  # some services (163.com) require it before opening a mailbox
            box.client.xatom("ID", f'("name" "nanobot" "version" "{__version__}")')
        with _owner_has_to_act(
            f"{config.imap_host} does not open the mailbox {config.imap_mailbox!r}", "Check channels.email.imapMailbox."
        ):
            try:
                box.folder.set(config.imap_mailbox, readonly=read_only)
            except imaplib.IMAP4.readonly:
                box.folder.set(config.imap_mailbox, readonly=True)
        box.email_message_class = _RawMessage
        self.validity, self.next_uid = (
            int(box.client.response(name)[1][0] or 0) for name in ("UIDVALIDITY", "UIDNEXT")
        )


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


@contextmanager
def _owner_has_to_act(what_failed: str, advice: str) -> Iterator[None]:
    """A refusal in this block that is not temporary becomes a ChannelSetupError."""
    try:
        yield
    except imaplib.IMAP4.abort:
        raise
    except _REFUSED as error:
        text = f"{what_failed} ({_reason(error)})"
        if _TEMPORARY.search(_reason(error)):
            raise ConnectionError(f"{text}; trying again later") from error
        raise ChannelSetupError(f"{text}. {advice}") from error


def _idle(box: BaseMailBox, seconds: float) -> None:
    """`idle.wait`, which does not see what came together with the server's confirmation: that is in a buffer."""
    with box.idle as idle:
        timeout = box.client.sock.gettimeout()
        box.client.sock.settimeout(0)
        try:
            has_news = bool(box.client.readline())
        except OSError:
            has_news = False
        finally:
            box.client.sock.settimeout(timeout)
        if not has_news:
            idle.poll(seconds)


def _reason(error: BaseException) -> str:
    """What the server said: one line, clipped."""
    said = error.command_result[1] if isinstance(error, UnexpectedCommandStatusError) else error.args
    words = (word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word) for word in said)
    return " ".join(" ".join(words).split())[:200]


def first_mails(mailbox: Mailbox, state: MailState, now: float) -> Iterator[FetchedMail]:
    """The mails before the position from which `new_mails` continues.

    In a folder never read before these are the unread mails since yesterday: an old mailbox is not answered. In a
    renumbered folder they are all mails from a day before the last check on; the journal drops duplicates. A folder
    whose next number is below our position counts as renumbered: it was restored, or had reported wrong numbers.
    """
    is_behind = 0 < mailbox.next_uid <= state.last_uid
    if state.checked_at and state.validity == mailbox.validity and not is_behind:
        return
    end = mailbox.next_uid - 1 if mailbox.next_uid else max(mailbox.search("ALL"), default=0)
    if state.checked_at:
        uids = mailbox.search(AND(date_gte=_day(state.checked_at - _DAY_S)))
        log.info("email: the server has renumbered this mailbox; checking %d recent mails again", len(uids))
    else:
        uids = mailbox.search(AND(seen=False, date_gte=_day(now - _DAY_S)))
        log.info("email: first check of this mailbox: %d unread since yesterday; older mails are ignored", len(uids))
    yield from filter(None, map(mailbox.fetch_one, uids))
    state.validity, state.last_uid, state.checked_at = mailbox.validity, max([end, *uids]), now


def new_mails(mailbox: Mailbox, state: MailState, now: float) -> Iterator[FetchedMail]:
    """The mails that came since. The position moves behind each once the next is asked for."""
    new = [uid for uid in mailbox.search(f"UID {state.last_uid + 1}:*") if uid > state.last_uid]  # `*`: at least one
    if not new and now - state.checked_at < HOUR_S:
        return
    # Arrived since the last check, or written since then: the server's clock may be wrong.
    since, unread = (_day(state.checked_at - age_s) for age_s in (_DAY_S, _UNREAD_S))
    is_recent = OR(OR(date_gte=since, sent_date_gte=since), AND(date_gte=unread, seen=False))
    recent = mailbox.search(AND(is_recent, uid=UidRange(str(state.last_uid + 1), "*"))) if new else []
    for uid in new:
        if uid not in recent:
            log.warning(
                "email: a mail is older than the last check of the mailbox, and is not answered. "
                "To get an answer, send it again."
            )
        elif (mail := mailbox.fetch_one(uid)) is not None:
            yield mail
        state.last_uid = uid
    state.checked_at = now


def _day(at: float) -> date:
    return (datetime.fromtimestamp(0, UTC) + timedelta(seconds=max(at, 0))).date()
