"""Reads and writes pairing.json: paired senders, owners, pending codes.

Parsing is strict: an invalid file is rejected as a whole, since a guess could grant access.
"""

import json
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from nanobot.errors import StorageError
from nanobot.pairing.codes import VALID_S
from nanobot.pairing.senders import Sender

_SLACK_S = 60
"""How far the clock may be set back before pending codes become invalid."""
_SECTIONS = ("owners", "approved", "pending", "names")
_OPTIONAL = ("name", "chat_id")
"""Fields of a pending code that may be missing."""


class Role(StrEnum):
    """The role of a paired sender on a channel."""

    OWNER = "owner"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Pending:
    """A pending code. Times are seconds since 1970."""

    code: str
    channel: str
    sender_id: str
    created_at: float
    expires_at: float
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


@dataclass(frozen=True, slots=True)
class PairingState:
    """The content of pairing.json."""

    owners: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    approved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pending: tuple[Pending, ...] = ()
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The names of approved senders when they asked, by channel and id."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Unknown keys; they are kept."""

    def people(self) -> dict[str, PairedUsers]:
        """The paired senders by channel."""
        return {
            channel: PairedUsers(_keys(self.owners.get(channel, ())), _keys(self.everyone(channel)))
            for channel in {**self.owners, **self.approved}
        }

    def everyone(self, channel: str) -> tuple[str, ...]:
        """The ids of all paired senders of a channel, owners first, each once."""
        return tuple(dict.fromkeys([*self.owners.get(channel, ()), *self.approved.get(channel, ())]))

    def name_of(self, channel: str, sender_id: str) -> str:
        """The name of a paired sender; empty if unknown."""
        return self.names.get(channel, {}).get(sender_id, "")

    def with_sender(self, channel: str, sender_id: str, *, owner: bool, name: str = "") -> "PairingState":
        """A copy with this sender approved. An owner is listed under `approved` too, for other readers of the file."""
        state = replace(self, approved=_with(self.approved, channel, sender_id))
        if name:
            names = {**self.names.get(channel, {}), sender_id: name}
            state = replace(state, names={**self.names, channel: names})
        return replace(state, owners=_with(state.owners, channel, sender_id)) if owner else state

    def without_sender(self, channel: str, key: str) -> "PairingState":
        """A copy without this sender and their pending codes on the channel."""
        pending = tuple(
            entry for entry in self.pending if (entry.channel, Sender.of(entry.sender_id).key) != (channel, key)
        )
        owners, approved = _without(self.owners, channel, key), _without(self.approved, channel, key)
        own = {name: value for name, value in self.names.get(channel, {}).items() if Sender.of(name).key != key}
        names = {name: value for name, value in {**self.names, channel: own}.items() if value}
        return replace(self, owners=owners, approved=approved, pending=pending, names=names)

    def to_json(self) -> str:
        """The text of the file."""
        pending = {
            entry.code: {
                name: value
                for name, value in asdict(entry).items()
                if name != "code" and (value or name not in _OPTIONAL)
            }
            for entry in self.pending
        }
        payload = {**self.others, "owners": dict(self.owners), "approved": dict(self.approved), "pending": pending}
        if self.names:
            payload["names"] = {channel: dict(names) for channel, names in self.names.items()}
        return json.dumps(payload, indent=2) + "\n"


def load_state(path: Path) -> PairingState:
    """Read the file; an empty state without one. Raises StorageError for an invalid file."""
    try:
        text = _read_text(path)
    except FileNotFoundError:
        return PairingState()
    except OSError as error:
        raise _unusable(path, error.strerror or type(error).__name__) from None
    except UnicodeDecodeError:
        raise _unusable(path, "it is not UTF-8") from None
    try:
        return _parse_state(json.loads(text))
    except json.JSONDecodeError as error:
        raise _unusable(path, f"line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise _unusable(path, "it is nested too deep") from None
    except ValueError as error:
        raise _unusable(path, str(error)) from None


def _read_text(path: Path) -> str:
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
        raise OSError(0, "it is not a regular file")
    return path.read_text(encoding="utf-8-sig")


def _unusable(path: Path, reason: str) -> StorageError:
    return StorageError(
        f"{path} cannot be used ({reason}). It is left unchanged; until it is fixed only senders in `allowFrom` are "
        "allowed. Fix it, or move it away and pair again."
    )


class _InvalidStateError(ValueError):
    """The file's content is invalid."""


def _parse_state(data: Any) -> PairingState:
    sections = _parse_object(data, "it")
    others = {name: value for name, value in sections.items() if name not in _SECTIONS}
    pending = _parse_object(sections.get("pending"), "pending")
    return PairingState(
        _parse_senders(sections.get("owners"), "owners"),
        _parse_senders(sections.get("approved"), "approved"),
        tuple(_parse_pending(code, entry) for code, entry in pending.items()),
        _parse_names(sections.get("names")),
        others,
    )


def _parse_names(value: Any) -> dict[str, dict[str, str]]:
    """Names grant nothing, so an unreadable one is dropped instead of closing the file."""
    channels = value if isinstance(value, dict) else {}
    return {
        channel: {sender_id: str(name) for sender_id, name in names.items()}
        for channel, names in channels.items()
        if isinstance(names, dict)
    }


def _parse_object(value: Any, location: str) -> dict[str, Any]:
    if value is None and location != "it":
        return {}
    if not isinstance(value, dict):
        raise _InvalidStateError(f"{location} is not an object")
    return value


def _parse_senders(value: Any, location: str) -> dict[str, tuple[str, ...]]:
    return {
        channel: _parse_ids(ids, f"{location}.{channel}") for channel, ids in _parse_object(value, location).items()
    }


def _parse_ids(value: Any, location: str) -> tuple[str, ...]:
    """Ids may be written as numbers."""
    if not isinstance(value, list) or not all(type(item) in (str, int) for item in value):
        raise _InvalidStateError(f"{location} is not a list of ids")
    return tuple(str(item) for item in value)


def _parse_pending(code: str, value: Any) -> Pending:
    location = f"pending.{code}"
    entry = _parse_object(value, location)
    channel, sender_id = entry.get("channel"), entry.get("sender_id")
    if type(channel) not in (str, int) or type(sender_id) not in (str, int):
        raise _InvalidStateError(f"{location} lacks a channel or a sender_id")
    created_at, expires_at = (
        _parse_time(entry.get(name), f"{location}.{name}") for name in ("created_at", "expires_at")
    )
    name, chat_id = (str(entry.get(field) or "") for field in _OPTIONAL)
    return Pending(code, str(channel), str(sender_id), created_at, expires_at, name, chat_id)


def _parse_time(value: Any, location: str) -> float:
    """Seconds since 1970; also reads ISO format."""
    try:
        if isinstance(value, str):
            return datetime.fromisoformat(value).timestamp()
        if type(value) in (int, float) and abs(value) < 1e15:
            return float(value)
    except (ValueError, OverflowError, OSError):
        pass
    raise _InvalidStateError(f"{location} is not a time")


def _keys(ids: tuple[str, ...]) -> frozenset[str]:
    return frozenset(Sender.of(sender_id).key for sender_id in ids) - {""}


def _with(table: Mapping[str, tuple[str, ...]], channel: str, sender_id: str) -> dict[str, tuple[str, ...]]:
    ids = table.get(channel, ())
    return {**table, channel: ids if Sender.of(sender_id).key in _keys(ids) else (*ids, sender_id)}


def _without(table: Mapping[str, tuple[str, ...]], channel: str, key: str) -> dict[str, tuple[str, ...]]:
    remaining = {
        name: tuple(sender_id for sender_id in ids if (name, Sender.of(sender_id).key) != (channel, key))
        for name, ids in table.items()
    }
    return {name: ids for name, ids in remaining.items() if ids}
