"""PairingStore: `pairing.json`, who may speak on which channel, who is owner there, and who waits for a word.

The command line and the gateway work on the same file: who writes holds a lock and reads it first, who reads looks
whether it changed. A file that cannot be read lets nobody in, and is neither replaced nor mended: it is the owner's.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from nanobot.config.paths import Places
from nanobot.errors import NanobotError, StorageError
from nanobot.pairing.book import NOBODY, Book, Pending, People, Role, load_book
from nanobot.pairing.codes import VALID_S, as_typed, new_code, same_code
from nanobot.pairing.senders import Sender
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import locked
from nanobot.utils.refusals import refusal

MOST_PENDING = 3
"""Codes a channel may have out at once: a crowd of strangers neither fills the file nor pushes anybody out of it."""
_TICK_NS = 100_000_000
_Stamp = tuple[int, int, int, int]
_NO_FILE: _Stamp = (0, 0, 0, 0)

log = logging.getLogger(__name__)


class PairingError(NanobotError):
    """What was asked of pairing cannot be done as things are."""


class UnknownCodeError(PairingError):
    """Nobody waits with this code: mistyped, used, denied or too old."""

    def __init__(self, code: str) -> None:
        super().__init__(
            f"Nobody waits with the code {code[:20]!r}. A code is good once, for {VALID_S // 60} minutes; who has none "
            "gets one by writing to the bot. `nanobot pairing list` shows those that are out."
        )


class NotPairedError(PairingError):
    """This sender is not among those who paired."""


class PairingStore:
    """The file, shared with every other process of this data folder. Methods block; none is slow without a crowd."""

    def __init__(self, places: Places, clock: Clock | None = None) -> None:
        self.path = places.pairing
        self._lock = places.state / "pairing.lock"
        self._clock = clock or SystemClock()
        self._stamp: _Stamp | None = None
        self._people: dict[str, People] = {}
        self._waiting: tuple[Pending, ...] = ()
        self.problem = ""
        """Why nobody is let in by pairing, as far as this process has looked; empty while all is well."""

    def people(self, channel: str) -> People:
        """Who paired on this channel, as the file says now. Never raises: of a file that cannot be read, nobody."""
        self._look()
        return self._people.get(channel, NOBODY)

    def waiting(self, channel: str) -> list[Pending]:
        """The codes of this channel that may still be used, as the file says now. Never raises."""
        self._look()
        now = self._now()
        return [one for one in self._waiting if one.channel == channel and one.is_out(now)]

    def paired_channels(self) -> frozenset[str]:
        """The channels on which somebody has paired, as the file says now. Never raises."""
        self._look()
        return frozenset(channel for channel, people in self._people.items() if people.approved)

    def book(self) -> Book:
        """All of it, without codes that are too old. Raises StorageError for a file that cannot be used."""
        book, now = load_book(self.path), self._now()
        return replace(book, pending=tuple(one for one in book.pending if one.is_out(now)))

    def ask(self, channel: str, sender: Sender) -> Pending | None:
        """A code for who has none, kept before it is shown. Raises StorageError.

        None where they have one, where no more may be out, and for a sender without an id.
        """
        with self._changing() as change:
            book = change.book
            here = [one for one in book.pending if one.channel == channel]
            if not sender.key or len(here) >= MOST_PENDING or any(one.is_of(sender) for one in here):
                return None
            taken, code = {one.code for one in book.pending}, new_code()
            while code in taken:
                code = new_code()
            now = self._now()
            pending = Pending(code, channel, sender.id, now, now + VALID_S)
            change.book = replace(book, pending=(*book.pending, pending))
        return pending

    def approve(self, code: str, *, owner: bool = False) -> Pending:
        """Let in who has this code, for good; as owner of the channel if that is said. The code is used up.

        Raises UnknownCodeError, StorageError.
        """
        with self._changing() as change:
            found, book = _taken_out(change.book, code)
            change.book = book.with_sender(found.channel, found.sender_id, owner=owner)
        return found

    def admit(self, channel: str, sender_id: str, *, owner: bool = False) -> None:
        """Let in somebody whose id is known, without a code. Raises StorageError."""
        with self._changing() as change:
            change.book = change.book.with_sender(channel, sender_id, owner=owner)

    def deny(self, code: str) -> Pending:
        """Let this code be good for nothing. Raises UnknownCodeError, StorageError."""
        with self._changing() as change:
            found, change.book = _taken_out(change.book, code)
        return found

    def revoke(self, channel: str, sender_id: str) -> Role:
        """Forget who paired; what they were. Raises NotPairedError, StorageError."""
        sender = Sender.of(sender_id.strip())
        with self._changing() as change:
            people = change.book.people()
            role = people.get(channel, NOBODY).role_of(sender)
            if role is None:
                raise _not_paired(change.book, channel, sender)
            change.book = change.book.without_sender(channel, sender.key)
        return role

    def _look(self) -> None:
        """Read the file if it changed since."""
        stamp = _stamp_of(self.path)
        if stamp is not None and stamp == self._stamp:
            return
        try:
            book = load_book(self.path)
            self._people, self._waiting, problem = book.people(), book.pending, ""
        except StorageError as error:
            self._people, self._waiting, problem = {}, (), str(error)
        if problem and problem != self.problem:
            log.error("Nobody is let in by pairing: %s", problem)
        elif self.problem and not problem:
            log.info("%s can be used again", self.path)
        self._stamp, self.problem = stamp, problem

    @contextmanager
    def _changing(self) -> Iterator["_Change"]:
        """The book as it is now, to be changed; written at the end, unless the block raised or changed nothing."""
        try:
            with locked(self._lock):
                change = _Change(self.book())
                before = change.book
                yield change
                if change.book is not before:
                    make_private_folder(self.path.parent)
                    write_atomic(self.path, change.book.as_json(), mode=PRIVATE_FILE)
        except OSError as error:
            raise refusal(f"{self.path} cannot be changed", error) from error

    def _now(self) -> float:
        return self._clock.now().timestamp()


@dataclass(slots=True)
class _Change:
    book: Book


def _taken_out(book: Book, code: str) -> tuple[Pending, Book]:
    """Who waits with this code, and the book without it. Every code is compared, and each to its end."""
    typed = as_typed(code)
    found = [one for one in book.pending if same_code(as_typed(one.code), typed)]
    if not found:
        raise UnknownCodeError(code)
    return found[0], replace(book, pending=tuple(one for one in book.pending if one is not found[0]))


def _not_paired(book: Book, channel: str, sender: Sender) -> NotPairedError:
    known = book.everyone(channel)
    if not known:
        others = ", ".join(sorted(book.people()))
        there = f"; somebody has on {others}" if others else ", nor anywhere else"
        return NotPairedError(f"Nobody has paired on {channel!r}{there}. See `nanobot pairing list`.")
    return NotPairedError(f"{sender.id!r} has not paired on {channel}; who has: {', '.join(map(repr, known))}.")


def _stamp_of(path: Path) -> _Stamp | None:
    """What changes when the file does; None where that cannot be told, as right after a change.

    The clock of a file system ticks slowly: two changes within a tick may look like one.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return _NO_FILE
    except OSError:
        return None
    if time.time_ns() - found.st_mtime_ns < _TICK_NS:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
