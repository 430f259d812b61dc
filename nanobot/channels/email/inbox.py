"""A folder that is read mail by mail, each once: through restarts, other readers, and servers that renumber it.

A mail counts as read when whoever takes it has returned. Only then is its flag set, and its number remembered.
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
"""Of a larger one only the beginning is read."""
MOST_LINES = 1_000_000
"""Nor of one in more lines; a file of that size has as many. A header of four letters a line costs a minute else."""
HEAD = 256 * 1024
_DAY_S = 86400.0
_UNREAD_S = 7 * _DAY_S
"""How much older than the last look an unread mail may be: it may have lain in another folder meanwhile."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Take = Callable[[FetchedMail], Awaitable[bool]]
"""Takes a mail; whether it is to be flagged as seen. What it raises ends the reading, and the mail comes again."""


class MailFolder:
    """One folder over one connection."""

    def __init__(self, imap: Imap, book: MailStore, clock: Clock, name: str, *, mark_seen: bool = True) -> None:
        """`name` is what the book knows the folder by: a mailbox of another account is another folder."""
        self._imap = imap
        self._book = book
        self._clock = clock
        self._name = name
        self._mark_seen = mark_seen

    async def begin(self, folder: Folder, take: Take) -> MailPosition:
        """Where reading goes on. What is to be taken before that is taken.

        A folder never read before begins with what came since yesterday and nobody has seen: an old mailbox is not
        answered. One that the server has renumbered begins a day before it was last looked at; mails that were taken
        then are known to the journal. So does one whose next number was given out long ago, though it says that nothing
        was renumbered: a mailbox that was restored, or one that once named numbers it did not have.
        """
        known = await self._book.place(self._name)
        is_behind = known is not None and folder.next_uid is not None and known.last_uid >= folder.next_uid
        if known is not None and known.validity == folder.validity and not is_behind:
            return known
        end = folder.next_uid - 1 if folder.next_uid else max(await self._imap.search("ALL"), default=0)
        now = self._now()
        if known is None:
            uids = await self._imap.search(f"UNSEEN SINCE {imap_day(now - _DAY_S)}")
            log.info(
                "email: first check of this mailbox: %d unread since yesterday; older mails are ignored", len(uids)
            )
        else:
            uids = await self._imap.search(f"SINCE {imap_day(known.looked_at - _DAY_S)}")
            log.info("email: the server has renumbered this mailbox; checking %d recent mails again", len(uids))
        since = (known.looked_at if known is not None else now) - 2 * _DAY_S
        for uid in uids:
            await self._take(uid, since, take)
        place = MailPosition(folder.validity, max([end, *uids]), now)
        await self._book.read_to(self._name, place)
        return place

    async def look(self, place: MailPosition, take: Take) -> MailPosition:
        """Take what is new; how far it is read now."""
        found = await self._imap.search(f"UID {place.last_uid + 1}:*")  # the star is the last mail, however old
        for uid in found:
            if uid > place.last_uid:
                await self._take(uid, place.looked_at - _DAY_S, take, unread_since=place.looked_at - _UNREAD_S)
                place = replace(place, last_uid=uid)
                await self._book.read_to(self._name, place)
        now = self._now()
        if now - place.looked_at > HOUR_S:
            place = replace(place, looked_at=now)
            await self._book.read_to(self._name, place)
        return place

    async def wait(self, *, poll_s: float, longest_silence_s: float) -> None:
        """Until there may be something new. The server is asked for a sign of life meanwhile."""
        if "IDLE" in self._imap.capabilities:
            await self._imap.idle(longest_silence_s)
            return
        left_s = poll_s
        while left_s > 0:
            await asyncio.sleep(min(left_s, longest_silence_s))
            left_s -= longest_silence_s
            await self._imap.ping()

    async def _take(self, uid: int, since: float, take: Take, *, unread_since: float | None = None) -> None:
        mail = await self._imap.fetch(uid, largest=LARGEST_MAIL, head=HEAD)
        if mail is None:
            return  # gone meanwhile
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
        if await take(mail) and self._mark_seen and not mail.is_seen:
            try:
                await self._imap.mark_seen(uid)
            except ImapRefusedError as error:
                log.warning("email: a mail cannot be flagged as seen (%s); processing it anyway", error)

    def _now(self) -> float:
        return self._clock.now().timestamp()


def received_at(mail: FetchedMail) -> float:
    """When it came, by the server's clock; a time that cannot be read is now."""
    try:
        return parsedate_to_datetime(mail.received).timestamp()
    except (ValueError, TypeError, OverflowError):
        return float("inf")


def _written_at(mail: FetchedMail) -> float:
    """When it was sent, as it says itself; long ago where it does not. Asked where the server's clock may be wrong."""
    try:
        return parsedate_to_datetime(read_mail(mail.raw[:HEAD]).headers.text("Date")).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0


def imap_day(at: float) -> str:
    """The day of an instant, as a search wants it."""
    day = datetime.fromtimestamp(0, UTC) + timedelta(seconds=max(at, 0))
    return f"{day.day}-{_MONTHS[day.month - 1]}-{day.year}"
