"""PairingStore: paired senders, owners and pending codes in `pairing.json`.

Commands and the gateway share the file: writers hold a lock, readers reload it when it changed. An unreadable file
grants no access and is left for its owner to fix.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from nanobot.config.paths import DataPaths
from nanobot.errors import NanobotError, StorageError
from nanobot.pairing.codes import VALID_S, codes_equal, new_code, normalize_code
from nanobot.pairing.senders import Sender
from nanobot.pairing.state import NOBODY, PairedUsers, PairingState, Pending, Role, load_state
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import file_lock
from nanobot.utils.storage_error import storage_error

MAX_PENDING = 20
"""Pending codes per channel."""
REPLACEABLE_AFTER_S = 120
"""At the limit a new code replaces the oldest one, if that is at least this old, in seconds."""
_TICK_NS = 100_000_000
"""Resolution of file times that is assumed at most."""
_Stamp = tuple[int, int, int, int]
_NO_FILE: _Stamp = (0, 0, 0, 0)

log = logging.getLogger(__name__)


class PairingError(NanobotError):
    """A pairing request that cannot be fulfilled."""


class UnknownCodeError(PairingError):
    """The code is mistyped, used, denied or expired."""

    def __init__(self, code: str) -> None:
        super().__init__(
            f"The code {code[:20]!r} is not pending. A code is valid once, for {VALID_S // 60} minutes; to get a new "
            "one, write to the bot. `nanobot pairing list` shows the pending codes."
        )


class NotPairedError(PairingError):
    """The sender is not paired."""


class PairingStore:
    """The pairing file, shared by all processes of a data folder. Methods block briefly on the disk."""

    def __init__(self, places: DataPaths, clock: Clock | None = None) -> None:
        self.path = places.pairing
        self._lock = places.state / "pairing.lock"
        self._clock = clock or SystemClock()
        self._stamp: _Stamp | None = None
        self._state: PairingState | None = None
        """As of the last read; None before the first."""
        self._people: dict[str, PairedUsers] = {}
        self._pending: tuple[Pending, ...] = ()
        self.problem = ""
        """Why the file cannot be used, as of the last read; empty if it can."""

    def people(self, channel: str) -> PairedUsers:
        """The paired senders of a channel, from the current file. Never raises: nobody if the file is unusable."""
        self._reload()
        return self._people.get(channel, NOBODY)

    def pending(self, channel: str) -> list[Pending]:
        """The valid codes of a channel, from the current file. Never raises."""
        self._reload()
        now = self.now()
        return [entry for entry in self._pending if entry.channel == channel and entry.is_valid(now)]

    def has_room(self, channel: str) -> bool:
        """Whether the channel's limit allows another code. Never raises."""
        return _has_room(self.pending(channel), self.now())

    def paired_channels(self) -> frozenset[str]:
        """The channels with paired senders, from the current file. Never raises."""
        self._reload()
        return frozenset(channel for channel, people in self._people.items() if people.approved)

    def load(self) -> PairingState:
        """Read the whole state, without expired codes. Raises StorageError for an unusable file."""
        state, now = load_state(self.path), self.now()
        return replace(state, pending=tuple(entry for entry in state.pending if entry.is_valid(now)))

    def ask(self, channel: str, sender: Sender, name: str = "", chat_id: str = "") -> Pending | None:
        """Create and save a code, with how the platform shows the sender and where they wrote. Raises StorageError.

        None if the sender has a code already or has no id, or the channel is at its limit.
        """
        with self._transaction() as transaction:
            state, now = transaction.state, self.now()
            pending = [entry for entry in state.pending if entry.channel == channel]
            if not sender.key or any(entry.is_from(sender) for entry in pending):
                return None
            if not _has_room(pending, now):
                return None
            if len(pending) >= MAX_PENDING:
                oldest = min(pending, key=lambda entry: entry.created_at)
                state = replace(state, pending=tuple(entry for entry in state.pending if entry is not oldest))
            used, code = {entry.code for entry in state.pending}, new_code()
            while code in used:
                code = new_code()
            created = Pending(code, channel, sender.id, now, now + VALID_S, name, chat_id)
            transaction.state = replace(state, pending=(*state.pending, created))
        return created

    def approve(self, code: str, *, owner: bool = False) -> Pending:
        """Allow the sender with this code, with `owner` as an owner of the channel. Uses up the code.

        Raises UnknownCodeError, StorageError.
        """
        with self._transaction() as transaction:
            entry, state = _remove_code(transaction.state, code)
            transaction.state = state.with_sender(entry.channel, entry.sender_id, owner=owner, name=entry.name)
        return entry

    def admit(self, channel: str, sender_id: str, *, owner: bool = False, name: str = "") -> None:
        """Allow a sender by id, without a code. Raises StorageError."""
        with self._transaction() as transaction:
            transaction.state = transaction.state.with_sender(channel, sender_id, owner=owner, name=name)

    def deny(self, code: str) -> Pending:
        """Remove a code without approving it. Raises UnknownCodeError, StorageError."""
        with self._transaction() as transaction:
            entry, transaction.state = _remove_code(transaction.state, code)
        return entry

    def revoke(self, channel: str, sender_id: str) -> Role:
        """Remove a paired sender. Return the role they had. Raises NotPairedError, StorageError."""
        sender = Sender.of(sender_id.strip())
        with self._transaction() as transaction:
            role = transaction.state.people().get(channel, NOBODY).role_of(sender)
            if role is None:
                raise _not_paired(transaction.state, channel, sender)
            transaction.state = transaction.state.without_sender(channel, sender.key)
        return role

    def _reload(self) -> None:
        """Read the file if it has changed."""
        stamp = _file_stamp(self.path)
        if stamp is not None and stamp == self._stamp:
            return
        try:
            state = load_state(self.path)
            if self._state is not None:
                _log_changes(self._state, state)
            self._state = state
            self._people, self._pending, problem = state.people(), state.pending, ""
        except StorageError as error:
            self._people, self._pending, problem = {}, (), str(error)
        if problem and problem != self.problem:
            log.error("Paired senders are not allowed until this is fixed: %s", problem)
        elif self.problem and not problem:
            log.info("%s can be used again", self.path)
        self._stamp, self.problem = stamp, problem

    @contextmanager
    def _transaction(self) -> Iterator["_Transaction"]:
        """Read the state under the lock, and write it at the end if the block changed it and did not raise."""
        try:
            with file_lock(self._lock):
                transaction = _Transaction(self.load())
                before = transaction.state
                yield transaction
                if transaction.state is not before:
                    make_private_folder(self.path.parent)
                    write_atomic(self.path, transaction.state.to_json(), mode=PRIVATE_FILE)
        except OSError as error:
            raise storage_error(f"{self.path} cannot be changed", error) from error

    def now(self) -> float:
        """The time, in seconds since 1970."""
        return self._clock.now().timestamp()


@dataclass(slots=True)
class _Transaction:
    state: PairingState


def _log_changes(before: PairingState, after: PairingState) -> None:
    """Log who was let in and who was removed: in a chat, in the terminal or in the file."""
    for channel in sorted({**before.people(), **after.people()}):
        was, now = before.everyone(channel), after.everyone(channel)
        for sender_id in [sender_id for sender_id in now if sender_id not in was]:
            role = "owner" if sender_id in after.owners.get(channel, ()) else "guest"
            log.info("%s: paired %s as %s", channel, _who(after, channel, sender_id), role)
        for sender_id in [sender_id for sender_id in was if sender_id not in now]:
            log.info("%s: %s is no longer paired", channel, _who(before, channel, sender_id))


def _who(state: PairingState, channel: str, sender_id: str) -> str:
    name = state.name_of(channel, sender_id)
    return f"{sender_id!r} {name}" if name else repr(sender_id)


def _has_room(pending: Sequence[Pending], now: float) -> bool:
    return len(pending) < MAX_PENDING or any(now - entry.created_at >= REPLACEABLE_AFTER_S for entry in pending)


def _remove_code(state: PairingState, code: str) -> tuple[Pending, PairingState]:
    """Return the entry with this code, and the state without it. Compares all codes, each in constant time."""
    normalized = normalize_code(code)
    matches = [entry for entry in state.pending if codes_equal(normalize_code(entry.code), normalized)]
    if not matches:
        raise UnknownCodeError(code)
    return matches[0], replace(state, pending=tuple(entry for entry in state.pending if entry is not matches[0]))


def _not_paired(state: PairingState, channel: str, sender: Sender) -> NotPairedError:
    paired = state.everyone(channel)
    if not paired:
        channels = ", ".join(sorted(state.people()))
        hint = f"; there are paired senders on {channels}" if channels else ", nor on any other channel"
        return NotPairedError(f"Nobody has paired on {channel!r}{hint}. See `nanobot pairing list`.")
    return NotPairedError(f"{sender.id!r} has not paired on {channel}; paired: {', '.join(map(repr, paired))}.")


def _file_stamp(path: Path) -> _Stamp | None:
    """A value that changes with the file. None if unknown, also right after a change.

    File times have a coarse resolution: two changes within one tick may have the same time.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return _NO_FILE
    except OSError:
        return None
    if time.time_ns() - status.st_mtime_ns < _TICK_NS:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
