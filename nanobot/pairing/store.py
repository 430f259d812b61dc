"""Who has paired: paired senders, owners and pending codes in `pairing.json`.

Commands and the gateway share the file: writers hold a lock, readers reload it when it changed. An unreadable file
grants no access and is left for its owner to fix: a guess could grant access.
"""

import hmac
import json
import logging
import re
import secrets
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from nanobot.config.paths import DataPaths
from nanobot.errors import NanobotError, StorageError
from nanobot.pairing.senders import Sender
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import file_lock
from nanobot.utils.storage_error import storage_error
from nanobot.utils.text import is_well_formed

ALPHABET = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
"""Without the ambiguous characters 0, O, 1, I and L."""
LENGTH = 8
VALID_S = 600
"""How long a code may be used."""
MAX_PENDING = 20
"""Pending codes per channel."""
REPLACEABLE_AFTER_S = 120
"""At the limit a new code replaces the oldest one, if that is at least this old, in seconds."""
LONGEST_WAIT_S = 86_400
"""Longest wait of a sender between two codes."""
MAX_SENDERS = 1_000
"""Senders remembered; beyond that the one with the oldest request is forgotten."""
_SLACK_S = 60
"""How far the clock may be set back before pending codes become invalid."""
_TICK_NS = 100_000_000
"""Resolution of file times that is assumed at most."""
_Stamp = tuple[int, int, int, int]

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


class Role(StrEnum):
    """The role of a paired sender on a channel."""

    OWNER = "owner"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class PairedUsers:
    """The paired senders of one channel."""

    owners: frozenset[str] = frozenset()
    approved: frozenset[str] = frozenset()
    """Keys of senders, including owners."""

    def role_of(self, sender: Sender) -> Role | None:
        """The role of a sender, None if not paired. Matches ids only, since names may pass to another sender."""
        if sender.key in self.owners:
            return Role.OWNER
        return Role.PERSON if sender.key in self.approved else None

    def is_same_person(self, sender_ids: Iterable[str]) -> bool:
        """Whether all ids are spellings of one sender, who is an owner if the channel has owners."""
        keys = {Sender.of(sender_id).key for sender_id in sender_ids}
        return len(keys) == 1 and (not self.owners or keys <= self.owners)


NOBODY = PairedUsers()

_Id = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
"""Ids may be written as numbers."""
_Time = Annotated[
    float,
    BeforeValidator(lambda value: datetime.fromisoformat(value).timestamp() if isinstance(value, str) else value),
    Field(gt=-1e15, lt=1e15),
]
"""Seconds since 1970; ISO format is read too."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A pending code."""

    code: str
    channel: _Id
    sender_id: _Id
    created_at: _Time
    expires_at: _Time
    name: str = ""
    """As the platform shows them (`display_name`); empty if unknown."""
    chat_id: str = ""
    """The private chat they wrote in; empty if unknown."""

    def __str__(self) -> str:
        return f"{self.name or self.sender_id} on {self.channel}"

    def is_valid(self, now: float) -> bool:
        """Whether the code may be used at this time."""
        return 0 < self.expires_at - now <= VALID_S + _SLACK_S

    def is_from(self, sender: Sender) -> bool:
        """Whether this sender has the code."""
        return Sender.of(self.sender_id).key == sender.key


@dataclass(frozen=True, slots=True)
class PairedSender:
    """Somebody who may talk to the bot on a channel."""

    channel: str
    sender_id: str
    name: str
    """Empty if unknown."""
    is_owner: bool


class PairingState(BaseModel):
    """The content of pairing.json. Unknown keys are kept."""

    model_config = ConfigDict(extra="allow", defer_build=True)

    owners: dict[str, list[_Id]] = Field(default_factory=dict)
    approved: dict[str, list[_Id]] = Field(default_factory=dict)
    """Owners are listed here too, for other readers of the file."""
    pending: dict[str, Pending] = Field(default_factory=dict)
    """By code."""
    names: dict[str, dict[str, str]] = {}
    """The names of approved senders when they asked, by channel and id."""

    @field_validator("owners", "approved", "pending", "names", mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("pending", mode="before")
    @classmethod
    def _with_codes(cls, value: Any) -> Any:
        """In the file the code is the key only."""
        if not isinstance(value, dict):
            return value
        return {code: {**entry, "code": code} if isinstance(entry, dict) else entry for code, entry in value.items()}

    def to_json(self) -> str:
        """The text of the file, without empty optional fields."""
        data = self.model_dump(exclude={"pending": {"__all__": {"code"}}}, exclude_defaults=True)
        return json.dumps({"owners": {}, "approved": {}, "pending": {}, **data}, ensure_ascii=False, indent=2) + "\n"

    def people(self) -> dict[str, PairedUsers]:
        """The paired senders by channel."""
        return {
            channel: PairedUsers(_keys(self.owners.get(channel, ())), _keys(self.everyone(channel)))
            for channel in {**self.owners, **self.approved}
        }

    def everyone(self, channel: str) -> list[str]:
        """The ids of all paired senders of a channel, owners first, each once."""
        return [*dict.fromkeys([*self.owners.get(channel, ()), *self.approved.get(channel, ())])]

    def paired(self) -> Iterator[PairedSender]:
        """All paired senders, by channel, owners first."""
        for channel in sorted({**self.owners, **self.approved}):
            for sender_id in self.everyone(channel):
                is_owner = sender_id in self.owners.get(channel, ())
                yield PairedSender(channel, sender_id, self.name_of(channel, sender_id), is_owner)

    def name_of(self, channel: str, sender_id: str) -> str:
        """The name of a paired sender; empty if unknown."""
        return self.names.get(channel, {}).get(sender_id, "")

    def take(self, code: str) -> Pending:
        """Remove a code and return it. Compares all codes, each in constant time. Raises UnknownCodeError."""
        wanted = _normalize_code(code)
        matches = [known for known in self.pending if hmac.compare_digest(_normalize_code(known), wanted)]
        if not matches:
            raise UnknownCodeError(code)
        return self.pending.pop(matches[0])

    def add(self, channel: str, sender_id: str, *, owner: bool, name: str = "") -> None:
        """Approve this sender, with `owner` as an owner of the channel."""
        for table in (self.approved, self.owners) if owner else (self.approved,):
            if Sender.of(sender_id).key not in _keys(table.get(channel, ())):
                table.setdefault(channel, []).append(sender_id)
        if name:
            self.names = {**self.names, channel: {**self.names.get(channel, {}), sender_id: name}}

    def remove(self, channel: str, sender: Sender) -> None:
        """Remove this sender and their pending codes from the channel."""
        for table in (self.owners, self.approved):
            ids = [sender_id for sender_id in table.pop(channel, ()) if Sender.of(sender_id).key != sender.key]
            if ids:
                table[channel] = ids
        names = {
            sender_id: name
            for sender_id, name in self.names.get(channel, {}).items()
            if Sender.of(sender_id).key != sender.key
        }
        self.names = {name: value for name, value in {**self.names, channel: names}.items() if value}
        self.pending = {
            code: entry for code, entry in self.pending.items() if entry.channel != channel or not entry.is_from(sender)
        }


class PairingStore:
    """The pairing file, shared by all processes of a data folder. Methods block briefly on the disk."""

    def __init__(self, places: DataPaths, clock: Clock | None = None) -> None:
        self.path = places.pairing
        self._lock = places.state / "pairing.lock"
        self._clock = clock or SystemClock()
        self._stamp: _Stamp | None = None
        self._last_valid: PairingState | None = None
        """None before the file was first read."""
        self._state = PairingState()
        """As of the last read; empty for an unusable file."""
        self._people: dict[str, PairedUsers] = {}
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
        return [entry for entry in self._state.pending.values() if entry.channel == channel and entry.is_valid(now)]

    def has_room(self, channel: str) -> bool:
        """Whether the channel's limit allows another code. Never raises."""
        return _has_room(self.pending(channel), self.now())

    def paired_channels(self) -> frozenset[str]:
        """The channels with paired senders, from the current file. Never raises."""
        self._reload()
        return frozenset(channel for channel, people in self._people.items() if people.approved)

    def load(self) -> PairingState:
        """Read the whole state, without expired codes. Raises StorageError for an unusable file."""
        state, now = _load(self.path), self.now()
        state.pending = {code: entry for code, entry in state.pending.items() if entry.is_valid(now)}
        return state

    def ask(self, channel: str, sender: Sender, name: str = "", chat_id: str = "") -> Pending | None:
        """Create and save a code, with how the platform shows the sender and where they wrote. Raises StorageError.

        None if the sender has a code already or has no valid id, or the channel is at its limit.
        """
        with self._transaction() as state:
            now = self.now()
            pending = [entry for entry in state.pending.values() if entry.channel == channel]
            if not sender.key or not is_well_formed(sender.id) or any(entry.is_from(sender) for entry in pending):
                return None
            if not _has_room(pending, now):
                return None
            if len(pending) >= MAX_PENDING:
                del state.pending[min(pending, key=lambda entry: entry.created_at).code]
            while (code := "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))) in state.pending:
                pass
            state.pending[code] = Pending(code, channel, sender.id, now, now + VALID_S, name, chat_id)
            return state.pending[code]

    def approve(self, code: str, *, owner: bool = False) -> Pending:
        """Allow the sender with this code, with `owner` as an owner of the channel. Uses up the code.

        Raises UnknownCodeError, StorageError.
        """
        with self._transaction() as state:
            entry = state.take(code)
            state.add(entry.channel, entry.sender_id, owner=owner, name=entry.name)
        return entry

    def admit(self, channel: str, sender_id: str, *, owner: bool = False, name: str = "") -> None:
        """Allow a sender by id, without a code. Raises StorageError."""
        with self._transaction() as state:
            state.add(channel, sender_id, owner=owner, name=name)

    def deny(self, code: str) -> Pending:
        """Remove a code without approving it. Raises UnknownCodeError, StorageError."""
        with self._transaction() as state:
            return state.take(code)

    def revoke(self, channel: str, sender_id: str) -> Role:
        """Remove a paired sender. Return the role they had. Raises NotPairedError, StorageError."""
        sender = Sender.of(sender_id.strip())
        with self._transaction() as state:
            role = state.people().get(channel, NOBODY).role_of(sender)
            if role is None:
                raise _not_paired(state, channel, sender)
            state.remove(channel, sender)
        return role

    def now(self) -> float:
        """The time, in seconds since 1970."""
        return self._clock.now().timestamp()

    def _reload(self) -> None:
        """Read the file if it has changed."""
        stamp = _file_stamp(self.path)
        if stamp is not None and stamp == self._stamp:
            return
        try:
            self._state, problem = _load(self.path), ""
        except StorageError as error:
            self._state, problem = PairingState(), str(error)
            if problem != self.problem:
                log.error("Paired senders are not allowed until this is fixed: %s", problem)  # noqa: TRY400
        else:
            if self.problem:
                log.info("%s can be used again", self.path)
            if self._last_valid is not None:
                _log_changes(self._last_valid, self._state)
            self._last_valid = self._state
        self._people, self._stamp, self.problem = self._state.people(), stamp, problem

    @contextmanager
    def _transaction(self) -> Iterator[PairingState]:
        """Read the state under the lock, and write it at the end if the block changed it and did not raise."""
        try:
            with file_lock(self._lock):
                state = self.load()
                before = state.to_json()
                yield state
                if (text := state.to_json()) != before:
                    make_private_folder(self.path.parent)
                    write_atomic(self.path, text, mode=PRIVATE_FILE)
        except OSError as error:
            raise storage_error(f"{self.path} cannot be changed", error) from error


class PairingRateLimiter:
    """Doubles the wait before each further code of a sender. In memory: a restart resets it.

    The first wait is as long as a code is valid, so that a person who missed it gets a second one at once, while a
    crowd cannot keep using up the limited number of codes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._senders: dict[str, tuple[int, float]] = {}
        """The number of codes, and when the next one is allowed, by sender key."""

    def may_request(self, sender: str) -> bool:
        """Whether this sender may get a code now."""
        return self._clock.monotonic() >= self._senders.get(sender, (0, 0.0))[1]

    def record_code(self, sender: str) -> None:
        """Record that this sender got a code."""
        count, _ = self._senders.get(sender, (0, 0.0))
        wait = min(VALID_S * 2 ** min(count, 20), LONGEST_WAIT_S)
        put_bounded(self._senders, sender, (count + 1, self._clock.monotonic() + wait), MAX_SENDERS)


def _load(path: Path) -> PairingState:
    """Read the file; an empty state without one. Raises StorageError for an unusable file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
            reason = "it is not a regular file"
        else:
            return PairingState.model_validate_json(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except FileNotFoundError:
        return PairingState()
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        reason = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    raise StorageError(
        f"{path} cannot be used ({reason}). It is left unchanged; until it is fixed only senders in `allowFrom` are "
        "allowed. Fix it, or move it away and pair again."
    )


def _file_stamp(path: Path) -> _Stamp | None:
    """A value that changes with the file. None if unknown, also right after a change.

    File times have a coarse resolution: two changes within one tick may have the same time.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return (0, 0, 0, 0)
    except OSError:
        return None
    if time.time_ns() - status.st_mtime_ns < _TICK_NS:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _log_changes(before: PairingState, after: PairingState) -> None:
    """Log who was let in and who was removed: in a chat, in the terminal or in the file."""
    for channel in sorted({**before.people(), **after.people()}):
        was, now = before.everyone(channel), after.everyone(channel)
        for sender_id in [sender_id for sender_id in now if sender_id not in was]:
            role = "owner" if sender_id in after.owners.get(channel, ()) else "guest"
            log.info("%s: paired %s as %s", channel, f"{sender_id!r} {after.name_of(channel, sender_id)}".strip(), role)
        for sender_id in [sender_id for sender_id in was if sender_id not in now]:
            who = f"{sender_id!r} {before.name_of(channel, sender_id)}".strip()
            log.info("%s: %s is no longer paired", channel, who)


def _has_room(pending: Collection[Pending], now: float) -> bool:
    return len(pending) < MAX_PENDING or any(now - entry.created_at >= REPLACEABLE_AFTER_S for entry in pending)


def _not_paired(state: PairingState, channel: str, sender: Sender) -> NotPairedError:
    paired = state.everyone(channel)
    if not paired:
        channels = ", ".join(sorted(state.people()))
        hint = f"; there are paired senders on {channels}" if channels else ", nor on any other channel"
        return NotPairedError(f"Nobody has paired on {channel!r}{hint}. See `nanobot pairing list`.")
    return NotPairedError(f"{sender.id!r} has not paired on {channel}; paired: {', '.join(map(repr, paired))}.")


def _normalize_code(text: str) -> bytes:
    """A code as typed, without blanks and dashes, in upper case."""
    return re.sub(r"[\s-]", "", text).upper().encode("utf-8", "backslashreplace")


def _keys(ids: Iterable[str]) -> frozenset[str]:
    return frozenset(Sender.of(sender_id).key for sender_id in ids) - {""}
