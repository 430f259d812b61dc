"""What pairing.json says: who paired, who is owner, who waits. Reading it is strict; what it means is told here.

A file that is not understood is refused as a whole: to guess at it would open a door.
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
"""How far the clock may be set back before a code that is out counts as none."""


class Role(StrEnum):
    """What somebody who paired is on a channel."""

    OWNER = "owner"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Pending:
    """A stranger who has a code. Times are seconds since 1970."""

    code: str
    channel: str
    sender_id: str
    created_at: float
    expires_at: float

    def is_out(self, now: float) -> bool:
        """Whether the code may be used at this moment."""
        return 0 < self.expires_at - now <= VALID_S + _SLACK_S

    def is_of(self, sender: Sender) -> bool:
        """Whether it is this sender who waits."""
        return Sender.of(self.sender_id).key == sender.key


@dataclass(frozen=True, slots=True)
class People:
    """Who paired on one channel."""

    owners: frozenset[str] = frozenset()
    approved: frozenset[str] = frozenset()
    """Keys of senders; an owner stands here too."""

    def role_of(self, sender: Sender) -> Role | None:
        """What this sender is here; None for a stranger. By the id alone: names change hands."""
        if sender.key in self.owners:
            return Role.OWNER
        return Role.PERSON if sender.key in self.approved else None

    def is_one_of_them(self, sender_ids: Iterable[str]) -> bool:
        """Whether these are one person by whatever spellings, who is an owner where there are owners."""
        keys = {Sender.of(one).key for one in sender_ids}
        return len(keys) == 1 and (not self.owners or keys <= self.owners)


NOBODY = People()


@dataclass(frozen=True, slots=True)
class Book:
    """What pairing.json says."""

    owners: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    approved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pending: tuple[Pending, ...] = ()
    others: Mapping[str, Any] = field(default_factory=dict)
    """Keys of somebody else's; they are kept."""

    def people(self) -> dict[str, People]:
        """Who paired, by channel."""
        return {
            channel: People(_keys(self.owners.get(channel, ())), _keys(self.everyone(channel)))
            for channel in {**self.owners, **self.approved}
        }

    def everyone(self, channel: str) -> tuple[str, ...]:
        """Everybody who paired there, the owners first, each once."""
        return tuple(dict.fromkeys([*self.owners.get(channel, ()), *self.approved.get(channel, ())]))

    def with_sender(self, channel: str, sender_id: str, *, owner: bool) -> "Book":
        """The book with this one let in. An owner stands under `approved` as well, where other readers look."""
        found = replace(self, approved=_with(self.approved, channel, sender_id))
        return replace(found, owners=_with(found.owners, channel, sender_id)) if owner else found

    def without_sender(self, channel: str, key: str) -> "Book":
        """The book with nobody of this key on the channel, nor waiting there."""
        waiting = tuple(one for one in self.pending if (one.channel, Sender.of(one.sender_id).key) != (channel, key))
        owners, approved = _without(self.owners, channel, key), _without(self.approved, channel, key)
        return replace(self, owners=owners, approved=approved, pending=waiting)

    def as_json(self) -> str:
        """The file's text."""
        pending = {
            one.code: {name: value for name, value in asdict(one).items() if name != "code"} for one in self.pending
        }
        told = {**self.others, "owners": dict(self.owners), "approved": dict(self.approved), "pending": pending}
        return json.dumps(told, indent=2) + "\n"


def load_book(path: Path) -> Book:
    """What the file says; an empty book where there is none. Raises StorageError for one that cannot be used."""
    try:
        text = _text_of(path)
    except FileNotFoundError:
        return Book()
    except OSError as error:
        raise _unusable(path, error.strerror or type(error).__name__) from None
    except UnicodeDecodeError:
        raise _unusable(path, "it is not UTF-8") from None
    try:
        return _book_of(json.loads(text))
    except json.JSONDecodeError as error:
        raise _unusable(path, f"line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise _unusable(path, "it is nested too deep") from None
    except ValueError as error:
        raise _unusable(path, str(error)) from None


def _text_of(path: Path) -> str:
    if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for its writer
        raise OSError(0, "It is no file")
    return path.read_text(encoding="utf-8-sig")


def _unusable(path: Path, why: str) -> StorageError:
    return StorageError(
        f"{path} cannot be used ({why}). It is left as it is, and until it is mended nobody but `allowFrom` is let in. "
        "Mend it, or move it away and pair again."
    )


class _NotABookError(ValueError):
    """Where the file does not say who may speak."""


def _book_of(told: Any) -> Book:
    sections = _table(told, "it")
    others = {name: value for name, value in sections.items() if name not in ("owners", "approved", "pending")}
    pending = _table(sections.get("pending"), "pending")
    return Book(
        _people_of(sections.get("owners"), "owners"),
        _people_of(sections.get("approved"), "approved"),
        tuple(_pending_of(code, one) for code, one in pending.items()),
        others,
    )


def _table(told: Any, where: str) -> dict[str, Any]:
    if told is None and where != "it":
        return {}
    if not isinstance(told, dict):
        raise _NotABookError(f"{where} is not an object")
    return told


def _people_of(told: Any, where: str) -> dict[str, tuple[str, ...]]:
    return {channel: _ids(ids, f"{where}.{channel}") for channel, ids in _table(told, where).items()}


def _ids(told: Any, where: str) -> tuple[str, ...]:
    """People write ids as numbers, too."""
    if not isinstance(told, list) or not all(type(one) in (str, int) for one in told):
        raise _NotABookError(f"{where} is not a list of ids")
    return tuple(str(one) for one in told)


def _pending_of(code: str, told: Any) -> Pending:
    where = f"pending.{code}"
    entry = _table(told, where)
    texts = [entry.get(name) for name in ("channel", "sender_id")]
    if not all(type(text) in (str, int) for text in texts):
        raise _NotABookError(f"{where} lacks a channel or a sender_id")
    created_at, expires_at = (_moment(entry.get(name), f"{where}.{name}") for name in ("created_at", "expires_at"))
    return Pending(code, str(texts[0]), str(texts[1]), created_at, expires_at)


def _moment(told: Any, where: str) -> float:
    """Seconds since 1970, or a time in ISO form."""
    try:
        if isinstance(told, str):
            return datetime.fromisoformat(told).timestamp()
        if type(told) in (int, float) and abs(told) < 1e15:
            return float(told)
    except (ValueError, OverflowError, OSError):
        pass
    raise _NotABookError(f"{where} is not a time")


def _keys(ids: tuple[str, ...]) -> frozenset[str]:
    return frozenset(Sender.of(one).key for one in ids) - {""}


def _with(table: Mapping[str, tuple[str, ...]], channel: str, sender_id: str) -> dict[str, tuple[str, ...]]:
    ids = table.get(channel, ())
    return {**table, channel: ids if Sender.of(sender_id).key in _keys(ids) else (*ids, sender_id)}


def _without(table: Mapping[str, tuple[str, ...]], channel: str, key: str) -> dict[str, tuple[str, ...]]:
    left = {
        name: tuple(one for one in ids if (name, Sender.of(one).key) != (channel, key)) for name, ids in table.items()
    }
    return {name: ids for name, ids in left.items() if ids}
