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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from nanobot.config.paths import DataPaths
from nanobot.errors import NanobotError, StorageError
from nanobot.pairing.senders import Sender
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.files import PRIVATE_FILE, file_stamp, make_private_folder, write_atomic
from nanobot.utils.locks import file_lock
from nanobot.utils.storage_error import storage_errors
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
_SLACK_S = 60
"""How far the clock may be set back before pending codes become invalid."""

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
    def __init__(self, channel: str, sender_id: str) -> None:
        super().__init__(f"{sender_id!r} has not paired on {channel}. `nanobot pairing list` shows who has.")


class Role(StrEnum):
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
        keys = {_key(sender_id) for sender_id in sender_ids}
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
    channel: _Id
    sender_id: _Id
    created_at: _Time
    expires_at: _Time
    name: str = ""
    """As the platform shows them (`display_name`); empty if unknown."""
    chat_id: str = ""
    """The private chat they wrote in; empty if unknown."""
    code: Annotated[str, Field(exclude=True)] = ""
    """The key of the entry in the file."""

    def __str__(self) -> str:
        return f"{self.name or self.sender_id} on {self.channel}"

    def is_valid(self, now: float) -> bool:
        return 0 < self.expires_at - now <= VALID_S + _SLACK_S

    def is_from(self, sender: Sender) -> bool:
        return _key(self.sender_id) == sender.key


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

    owners: dict[str, list[_Id]] = {}
    approved: dict[str, list[_Id]] = {}
    """Owners are listed here too, for other readers of the file."""
    pending: dict[str, Pending] = {}
    """By code."""
    names: dict[str, dict[str, str]] = {}
    """The names of approved senders when they asked, by channel and id."""

    @field_validator("pending")
    @classmethod
    def _with_codes(cls, pending: dict[str, Pending]) -> dict[str, Pending]:
        """In the file the code is the key only."""
        return {code: replace(entry, code=code) for code, entry in pending.items()}

    def to_json(self) -> str:
        """The text of the file, without empty optional fields."""
        data = {"owners": {}, "approved": {}, "pending": {}, **self.model_dump(exclude_defaults=True)}
        return json.dumps(data, ensure_ascii=False, indent=2) + "\n"

    def people(self) -> dict[str, PairedUsers]:
        """The paired senders by channel."""
        return {
            channel: PairedUsers(_keys(owners), _keys([*owners, *self.approved.get(channel, [])]))
            for channel in {**self.owners, **self.approved}
            for owners in [self.owners.get(channel, [])]
        }

    def paired(self) -> Iterator[PairedSender]:
        """All paired senders, by channel, owners first."""
        for channel in sorted({**self.owners, **self.approved}):
            owners, names = self.owners.get(channel, []), self.names.get(channel, {})
            for sender_id in dict.fromkeys([*owners, *self.approved.get(channel, [])]):
                yield PairedSender(channel, sender_id, names.get(sender_id, ""), sender_id in owners)

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
            ids = table.setdefault(channel, [])
            if _key(sender_id) not in map(_key, ids):
                ids.append(sender_id)
        if name:
            self.names.setdefault(channel, {})[sender_id] = name

    def remove(self, channel: str, sender: Sender) -> None:
        """Remove this sender and their pending codes from the channel."""
        for table in (self.owners, self.approved):
            table[channel] = [sender_id for sender_id in table.get(channel, []) if _key(sender_id) != sender.key]
        for sender_id in [known for known in self.names.get(channel, {}) if _key(known) == sender.key]:
            del self.names[channel][sender_id]
        for entry in [entry for entry in self.pending.values() if entry.channel == channel and entry.is_from(sender)]:
            del self.pending[entry.code]


class PairingStore:
    """The pairing file, shared by all processes of a data folder. Methods block briefly on the disk."""

    def __init__(self, places: DataPaths, clock: Clock | None = None) -> None:
        self.path = places.pairing
        self._lock = places.state / "pairing.lock"
        self._clock = clock or SystemClock()
        self._stamp: tuple[int, ...] | None = ()
        """Of the file as it was read; empty before that."""
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

    def has_room(self, pending: list[Pending]) -> bool:
        """Whether the limit allows another code beside these of a channel."""
        oldest = min((entry.created_at for entry in pending), default=0.0)
        return len(pending) < MAX_PENDING or self.now() - oldest >= REPLACEABLE_AFTER_S

    def load(self) -> PairingState:
        """Read the whole state, without expired codes. Raises StorageError for an unusable file."""
        state, now = self._read(), self.now()
        state.pending = {code: entry for code, entry in state.pending.items() if entry.is_valid(now)}
        return state

    def ask(self, channel: str, sender: Sender, name: str = "", chat_id: str = "") -> Pending | None:
        """Create and save a code, with how the platform shows the sender and where they wrote. Raises StorageError.

        None if the sender has a code already or has no valid id, or the channel is at its limit.
        """
        with self._transaction() as state:
            pending = [entry for entry in state.pending.values() if entry.channel == channel]
            if not sender.key or not is_well_formed(sender.id) or any(entry.is_from(sender) for entry in pending):
                return None
            if not self.has_room(pending):
                return None
            if len(pending) >= MAX_PENDING:
                del state.pending[min(pending, key=lambda entry: entry.created_at).code]
            while (code := "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))) in state.pending:
                pass
            now = self.now()
            state.pending[code] = Pending(channel, sender.id, now, now + VALID_S, name, chat_id, code)
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
                raise NotPairedError(channel, sender.id)
            state.remove(channel, sender)
        return role

    def now(self) -> float:
        """The time, in seconds since 1970."""
        return self._clock.now().timestamp()

    def _reload(self) -> None:
        """Read the file if it has changed, and log who was paired or removed, in a chat, a terminal or an editor."""
        before, stamp = self._stamp, file_stamp(self.path)
        if stamp == before:
            return
        self._stamp = stamp
        try:
            state, problem = self._read(), ""
        except StorageError as error:
            state, problem = PairingState(), str(error)
            if problem != self.problem:
                log.error("Paired senders are not allowed until this is fixed: %s", problem)  # noqa: TRY400
        else:
            if before != ():
                _log_changes(self._state, state)
        self._state, self._people, self.problem = state, state.people(), problem

    def _read(self) -> PairingState:
        """Read the file; an empty state without one. Raises StorageError for an unusable file."""
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):  # opening a pipe would block
                reason = "it is not a regular file"
            else:
                return PairingState.model_validate_json(self.path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
        except FileNotFoundError:
            return PairingState()
        except OSError as error:
            reason = error.strerror or type(error).__name__
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            reason = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise StorageError(
            f"{self.path} cannot be used ({reason}). It is left unchanged; until it is fixed only senders in "
            "`allowFrom` are allowed. Fix it, or move it away and pair again."
        )

    @contextmanager
    def _transaction(self) -> Iterator[PairingState]:
        """Read the state under the lock, and write it at the end if the block changed it and did not raise."""
        with storage_errors(f"{self.path} cannot be changed"), file_lock(self._lock):
            state = self.load()
            before = state.to_json()
            yield state
            if (text := state.to_json()) != before:
                make_private_folder(self.path.parent)
                write_atomic(self.path, text, mode=PRIVATE_FILE)


def _log_changes(before: PairingState, after: PairingState) -> None:
    was, now = ({(paired.channel, paired.sender_id): paired for paired in state.paired()} for state in (before, after))
    for key, paired in sorted({**was, **now}.items(), key=lambda item: item[0]):
        who = f"{paired.sender_id!r} {paired.name}".strip()
        if key not in now:
            log.info("%s: %s is no longer paired", paired.channel, who)
        elif key not in was:
            log.info("%s: paired %s as %s", paired.channel, who, "owner" if paired.is_owner else "guest")


def _normalize_code(text: str) -> bytes:
    """A code as typed, without blanks and dashes, in upper case."""
    return re.sub(r"[\s-]", "", text).upper().encode("utf-8", "backslashreplace")


def _key(sender_id: str) -> str:
    return Sender.of(sender_id).key


def _keys(ids: Iterable[str]) -> frozenset[str]:
    return frozenset(map(_key, ids)) - {""}
