"""Reads a folder, each mail once: despite restarts, other mail programs, and servers that renumber it.

A mail counts as read when `process` has returned. Only then is it flagged as seen and the position saved.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from nanobot.channels.email.imap import FetchedMail, Folder, Imap, ImapRefusedError
from nanobot.channels.email.incoming import read_mail
from nanobot.channels.email.store import HOUR_S, MailPosition, MailStore
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)

LARGEST_MAIL = 64 * 1024 * 1024
"""Larger mails are read only in part, see HEAD."""
MOST_LINES = 1_000_000
"""Mails with more lines are read only in part, too: parsing a million short header lines takes a minute."""
HEAD = 256 * 1024
_DAY_S = 86400.0
_UNREAD_S = 7 * _DAY_S
"""How much older than the last check an unread mail may be: it may have been moved from another folder."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

ProcessMail = Callable[[FetchedMail], Awaitable[bool]]
"""Processes a mail. Returns whether to flag it as seen. If it raises, the mail is read again later."""


class MailFolder:
    """One folder over one connection."""

    def __init__(self, imap: Imap, store: MailStore, clock: Clock, name: str, *, mark_seen: bool = True) -> None:
        """`name` identifies the folder in the store, including its account."""
        self._imap = imap
        self._store = store
        self._clock = clock
        self._name = name
        self._mark_seen = mark_seen

    async def begin(self, folder: Folder, process: ProcessMail) -> MailPosition:
        """Process the mails before the position from which `look` continues, and return that position.

        In a folder never read before these are the unread mails since yesterday: an old mailbox is not answered. In a
        renumbered folder they are all mails from a day before the last check on; the journal drops duplicates. A folder
        whose next number is below our position counts as renumbered: it was restored, or had reported wrong numbers.
        """
        saved = await self._store.position(self._name)
        is_behind = saved is not None and folder.next_uid is not None and saved.last_uid >= folder.next_uid
        if saved is not None and saved.validity == folder.validity and not is_behind:
            return saved
        end = folder.next_uid - 1 if folder.next_uid else max(await self._imap.search("ALL"), default=0)
        now = self._now()
        if saved is None:
            uids = await self._imap.search(f"UNSEEN SINCE {imap_day(now - _DAY_S)}")
            log.info(
                "email: first check of this mailbox: %d unread since yesterday; older mails are ignored", len(uids)
            )
        else:
            uids = await self._imap.search(f"SINCE {imap_day(saved.checked_at - _DAY_S)}")
            log.info("email: the server has renumbered this mailbox; checking %d recent mails again", len(uids))
        since = (saved.checked_at if saved is not None else now) - 2 * _DAY_S
        for uid in uids:
            await self._process(uid, since, process)
        position = MailPosition(folder.validity, max([end, *uids]), now)
        await self._store.save_position(self._name, position)
        return position

    async def look(self, position: MailPosition, process: ProcessMail) -> MailPosition:
        """Process the new mails. Return the new position."""
        uids = await self._imap.search(f"UID {position.last_uid + 1}:*")  # `*` is the last mail, however old
        for uid in uids:
            if uid > position.last_uid:
                since, unread_since = position.checked_at - _DAY_S, position.checked_at - _UNREAD_S
                await self._process(uid, since, process, unread_since=unread_since)
                position = replace(position, last_uid=uid)
                await self._store.save_position(self._name, position)
        now = self._now()
        if now - position.checked_at > HOUR_S:
            position = replace(position, checked_at=now)
            await self._store.save_position(self._name, position)
        return position

    async def wait(self, *, poll_s: float, longest_silence_s: float) -> None:
        """Wait until there may be new mails. Pings the server meanwhile."""
        if "IDLE" in self._imap.capabilities:
            await self._imap.idle(longest_silence_s)
            return
        left_s = poll_s
        while left_s > 0:
            await asyncio.sleep(min(left_s, longest_silence_s))
            left_s -= longest_silence_s
            await self._imap.ping()

    async def _process(
        self, uid: int, since: float, process: ProcessMail, *, unread_since: float | None = None
    ) -> None:
        mail = await self._imap.fetch(uid, largest=LARGEST_MAIL, head=HEAD)
        if mail is None:
            return  # deleted meanwhile
        if await asyncio.to_thread(mail.raw.count, b"\n") > MOST_LINES:
            mail = replace(mail, raw=mail.raw[:HEAD])
        oldest = since if mail.is_seen or unread_since is None else unread_since
        if received_at(mail) < oldest and await asyncio.to_thread(_written_at, mail) < oldest:
            log.warning(
                "email: a mail that arrived %s is older than the last check of the mailbox, and is not answered. "
                "To get an answer, send it again.",
                mail.received[:40],
            )
            return
        if await process(mail) and self._mark_seen and not mail.is_seen:
            try:
                await self._imap.mark_seen(uid)
            except ImapRefusedError as error:
                log.warning("email: a mail cannot be flagged as seen (%s); processing it anyway", error)

    def _now(self) -> float:
        return self._clock.now().timestamp()


def received_at(mail: FetchedMail) -> float:
    """When it arrived, by the server's clock; infinity if that cannot be parsed, so that it counts as new."""
    try:
        return parsedate_to_datetime(mail.received).timestamp()
    except (ValueError, TypeError, OverflowError):
        return float("inf")


def _written_at(mail: FetchedMail) -> float:
    """When it was sent by its own Date; 0 without one. Used in case the server's clock is wrong."""
    try:
        return parsedate_to_datetime(read_mail(mail.raw[:HEAD]).headers.text("Date")).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0


def imap_day(at: float) -> str:
    """The date of a timestamp in the format of IMAP searches."""
    day = datetime.fromtimestamp(0, UTC) + timedelta(seconds=max(at, 0))
    return f"{day.day}-{_MONTHS[day.month - 1]}-{day.year}"
