"""A mailbox over IMAP with imap-tools: one connection, the mails that it fetches, and the reader of the mail tool.

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
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, TypeVar

from imap_tools import AND, BaseMailBox, ImapToolsError, MailBox, MailBoxStartTls, MailBoxUnencrypted
from imap_tools.errors import UnexpectedCommandStatusError

from nanobot import __version__
from nanobot.channels.email.message import Mail, read_mail, split_quote
from nanobot.channels.email.settings import MailSettings, untrusted_text
from nanobot.channels.errors import ChannelSetupError
from nanobot.config.channels import EmailConfig
from nanobot.errors import NanobotError
from nanobot.utils.storage_error import os_reason
from nanobot.utils.text import clip, clip_line, human_size

log = logging.getLogger(__name__)
T = TypeVar("T")

LARGEST_MAIL = 64 * 1024 * 1024
MOST_LINES = 1_000_000
"""Of a mail with more bytes or lines only the beginning is read: a million short header lines take a minute."""
_BEGINNING = 256 * 1024
_TIMEOUT_S = 30.0
_TEMPORARY = re.compile(
    r"\[(?:UNAVAILABLE|INUSE|LIMIT|SERVERBUG|OVERQUOTA)\]|too many|try again|temporar", re.IGNORECASE
)
_REFUSED = (imaplib.IMAP4.error, ImapToolsError)
MAX_SEARCHED = 1000
"""Most mails whose headers are read for one search, the newest first."""
_AT_ONCE = 100
_LONGEST_LINE = 300
_ANSWER_S = 60.0
"""How long the mail tool may take."""


@dataclass(frozen=True, slots=True)
class FetchedMail:
    uid: int
    raw: bytes
    size: int
    is_seen: bool
    received_at: float | None = None
    """By the server's clock, as a timestamp."""
    is_whole: bool = True


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

    def fetch(self, uids: Sequence[int], *, headers_only: bool = False) -> list[FetchedMail]:
        """Fetch these mails without flagging them; deleted ones are left out, of too large ones all but the beginning.

        Not by `BaseMailBox.fetch`, which parses them: `read_mail` limits what a stranger's mail costs.
        """
        part = "[HEADER]" if headers_only else f"[]<0.{LARGEST_MAIL + 1}>"
        self.is_fetching = True
        status, data = self._box.client.uid(
            "FETCH", ",".join(map(str, uids)), f"(UID FLAGS RFC822.SIZE INTERNALDATE BODY.PEEK{part})"
        )
        self.is_fetching = False
        self._touch()
        if status != "OK":
            raise imaplib.IMAP4.error(*data)
        return [
            _fetched(line[0] + (behind if isinstance(behind, bytes) else b""), line[1])
            for line, behind in zip(data, [*data[1:], b""], strict=True)
            if isinstance(line, tuple)
        ]

    def mark_seen(self, uid: int) -> None:
        """Flag a mail as seen, unless the folder is read-only."""
        # not by `BaseMailBox.flag`, which also removes what other programs flagged as deleted
        typ, data = self._box.client.uid("STORE", str(uid), "+FLAGS.SILENT", "(\\Seen)")
        if typ != "OK":
            log.warning("email: a mail cannot be flagged as seen (%s); processing it anyway", data)

    def wait(self, *, poll_s: float, longest_silence_s: float) -> None:
        """Wait until there may be new mails. Asks the server for a sign of life meanwhile."""
        if self._has_idle:
            self._idle(longest_silence_s)
        while poll_s > 0 and not self._has_idle:
            if self._closed.wait(min(poll_s, longest_silence_s)):
                raise ConnectionError("the mailbox is closed")
            poll_s -= longest_silence_s
            self._box.client.noop()
            self._touch()
        self._touch()

    def _idle(self, seconds: float) -> None:
        """`idle.wait`, which does not see what came together with the server's confirmation: that is in a buffer."""
        client = self._box.client
        with self._box.idle as idle:
            timeout = client.sock.gettimeout()
            client.sock.settimeout(0)
            has_news = False
            with suppress(OSError):
                has_news = bool(client.readline())
            client.sock.settimeout(timeout)
            if not has_news:
                idle.poll(seconds)

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
        self.validity, self.next_uid = (
            int(box.client.response(name)[1][0] or 0) for name in ("UIDVALIDITY", "UIDNEXT")
        )


def _connect(settings: MailSettings) -> BaseMailBox:
    config = settings.config
    address = f"{config.imap_host}:{config.imap_port}"
    try:
        if not settings.imap_has_tls:
            return MailBoxUnencrypted(config.imap_host, config.imap_port, _TIMEOUT_S)
        kind = MailBox if config.imap_use_ssl else MailBoxStartTls
        return kind(config.imap_host, config.imap_port, timeout=_TIMEOUT_S, ssl_context=settings.tls)
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


def _reason(error: BaseException) -> str:
    """What the server said: one line, clipped."""
    said = error.command_result[1] if isinstance(error, UnexpectedCommandStatusError) else error.args
    words = (word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word) for word in said)
    return " ".join(" ".join(words).split())[:200]


def _fetched(about: bytes, raw: bytes) -> FetchedMail:
    """A mail by the attributes that a server tells beside it, in any order."""
    uid, size = (re.search(pattern, about) for pattern in (rb"\bUID (\d+)", rb"\bRFC822\.SIZE (\d+)"))
    received = imaplib.Internaldate2tuple(about)
    is_whole = len(raw) <= LARGEST_MAIL and raw.count(b"\n") <= MOST_LINES
    return FetchedMail(
        int(uid[1]) if uid else 0,
        raw if is_whole else raw[:_BEGINNING],
        int(size[1]) if size else len(raw),
        b"\\seen" in about.lower(),
        time.mktime(received) if received else None,
        is_whole,
    )


class NoSuchMailError(NanobotError):
    """The requested mail does not exist."""


class MailReader:
    """Reads the configured mailbox. Both methods raise NanobotError or OSError."""

    def __init__(self, config: Callable[[], EmailConfig], zone: tzinfo | None = None) -> None:
        """`config` is called each time, since it may change. `zone` is the user's; None for the host's."""
        self._config = config
        self._zone = zone

    async def find(
        self, *, unread: bool, since: datetime | None, sender: str, subject: str, limit: int
    ) -> dict[str, Any]:
        """The newest mails that match all criteria, newest first, at most `limit`."""
        return await self._in_mailbox(
            lambda settings, mailbox: self._search(settings, mailbox, unread, since, (sender, subject), limit)
        )

    async def read(self, mail_id: str) -> dict[str, Any]:
        """One mail by its id from `find`."""
        validity, _, uid = mail_id.strip().partition("-")
        if not (validity.isdecimal() and uid.isdecimal()):
            raise NoSuchMailError(f"{mail_id!r} is no id of a mail. `list` gives each mail one, such as 1-23.")

        def read(settings: MailSettings, mailbox: Mailbox) -> dict[str, Any]:
            if int(validity) != mailbox.validity:
                raise NoSuchMailError("The server has renumbered the mailbox since. List the mails again.")
            for fetched in mailbox.fetch([int(uid)]):
                return self._whole(settings, mailbox, fetched)
            raise NoSuchMailError(f"There is no mail {mail_id} any more. List the mails again.")

        return await self._in_mailbox(read)

    async def _in_mailbox(self, work: Callable[[MailSettings, Mailbox], dict[str, Any]]) -> dict[str, Any]:
        """Raises ChannelSetupError if the channel was switched off."""
        config = self._config()
        if not config.enabled:
            raise ChannelSetupError("channels.email is switched off.")
        async with asyncio.timeout(_ANSWER_S):
            settings = await asyncio.to_thread(MailSettings.of, config)
            return await in_mailbox(settings, lambda mailbox: work(settings, mailbox), read_only=True)

    def _search(
        self,
        settings: MailSettings,
        mailbox: Mailbox,
        unread: bool,
        since: datetime | None,
        words: tuple[str, str],
        limit: int,
    ) -> dict[str, Any]:
        after = since.timestamp() if since is not None else 0.0
        day = (since - timedelta(days=1)).date() if since is not None else None  # the server uses its own time zone
        uids = mailbox.search(AND(all=True, seen=False if unread else None, date_gte=day))[::-1]
        matches: list[dict[str, Any]] = []
        searched = 0
        while searched < min(len(uids), MAX_SEARCHED) and len(matches) < limit:
            batch = uids[searched : searched + _AT_ONCE]
            searched += len(batch)
            for head in sorted(mailbox.fetch(batch, headers_only=True), key=lambda head: -head.uid):
                mail = read_mail(head.raw)
                fields = (mail.headers.text("From"), mail.subject)
                fits = all(word.casefold() in text.casefold() for word, text in zip(words, fields, strict=True))
                is_recent = head.received_at is None or head.received_at >= after
                if fits and is_recent and len(matches) < limit:
                    matches.append(self._head(settings, mailbox, head, mail))
        result: dict[str, Any] = {"mails": matches}
        if len(matches) < limit and searched < len(uids):
            result["note"] = (
                f"Only the newest {searched} of {len(uids)} mails were looked at; ask with since or unread."
            )
        return result

    def _head(self, settings: MailSettings, mailbox: Mailbox, fetched: FetchedMail, mail: Mail) -> dict[str, Any]:
        received = ""
        if fetched.received_at is not None:
            received = f"{datetime.fromtimestamp(fetched.received_at, UTC).astimezone(self._zone):%Y-%m-%d %H:%M %z}"
        return {
            "mail": f"{mailbox.validity}-{fetched.uid}",
            "received": received,
            "from": _line(mail, "From"),
            "sender_proven": settings.verify_sender(mail).is_verified,
            "subject": clip_line(mail.subject, _LONGEST_LINE),
            "unread": not fetched.is_seen,
            "size": human_size(fetched.size),
        }

    def _whole(self, settings: MailSettings, mailbox: Mailbox, fetched: FetchedMail) -> dict[str, Any]:
        mail = read_mail(fetched.raw)
        new, quoted = split_quote(mail.text)
        most, note = settings.config.max_body_chars, "{left_out} characters left out"
        result = self._head(settings, mailbox, fetched, mail)
        result |= {name.lower(): line for name in ("To", "Cc") if (line := _line(mail, name))}
        result["text"] = clip(new.strip(), most, note)
        if quoted.strip():
            result["quoted"] = clip(quoted.strip(), most // 4, note)
        if mail.files:
            result["attachments"] = [
                f"{clip_line(file.name or 'without a name', _LONGEST_LINE)} "
                f"({file.content_type}, {human_size(len(file.data))})"
                for file in mail.files
            ]
        if not fetched.is_whole:
            result["note"] = f"The mail is {human_size(fetched.size)}; only its beginning was read."
        return result


def _line(mail: Mail, name: str) -> str:
    return clip_line(mail.headers.text(name), _LONGEST_LINE)
