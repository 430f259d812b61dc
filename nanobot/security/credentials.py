"""Credentials of the HTTP server: one-time links, the devices they pair, and keys of the API.

Only hashes are stored; a secret has 256 random bits, so a plain SHA-256 is enough.
"""

import hashlib
import secrets
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, count
from typing import TYPE_CHECKING

from nanobot.utils.clock import Clock
from nanobot.utils.database import Database

if TYPE_CHECKING:
    from sqlite3 import Connection

SCHEMA = """
CREATE TABLE IF NOT EXISTS credentials (
    hash TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, role TEXT NOT NULL, created_at REAL NOT NULL,
    used_at REAL NOT NULL, expires_at REAL, person TEXT NOT NULL, UNIQUE (kind, name)) WITHOUT ROWID;
"""
LINK_S = 600.0
"""How long a one-time link is valid, in seconds."""
DEVICE_S = 90 * 86400.0
"""How long a device stays signed in after its last use."""
_TOUCH_S = 3600.0
"""How exact the time of the last use is."""


class CredentialKind(StrEnum):
    """What a secret opens."""

    LINK = "link"
    """Signs a browser in, once."""
    DEVICE = "device"
    """A browser's cookie: the page."""
    API_KEY = "api_key"
    """A program's key: the API."""


class HttpRole(StrEnum):
    """What its holder may do."""

    OWNER = "owner"
    GUEST = "guest"
    """Talk as a person who is allowed to write, in sessions of their own; for a device: look, and change nothing."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Who holds a secret."""

    kind: CredentialKind
    name: str
    role: HttpRole
    created_at: float = 0.0
    """A Unix time, as are the others."""
    used_at: float = 0.0
    expires_at: float | None = None
    person: str = ""
    """The private chat of the person whom a guest's key speaks for, as `channel:chat_id`: it shares their memory."""


class Credentials:
    """The stored credentials. All methods raise StorageError."""

    def __init__(self, database: Database, clock: Clock) -> None:
        """The database has the tables of SCHEMA."""
        self._database = database
        self._clock = clock

    async def add(
        self, kind: CredentialKind, name: str, role: HttpRole = HttpRole.OWNER, person: str = ""
    ) -> str | None:
        """Return a new secret; None if one of this kind and name exists."""
        secret, now = secrets.token_urlsafe(32), self._clock.now().timestamp()
        lifetimes = {CredentialKind.LINK: LINK_S, CredentialKind.DEVICE: DEVICE_S}
        expires_at = now + lifetimes[kind] if kind in lifetimes else None

        def insert(db: "Connection") -> int:
            db.execute("DELETE FROM credentials WHERE expires_at < ?", (now,))
            row = (_hash(secret), kind, name, role, now, now, expires_at, person)
            return db.execute("INSERT OR IGNORE INTO credentials VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row).rowcount

        return secret if await self._database.ask(insert) else None

    async def check(self, kind: CredentialKind, secret: str) -> Credential | None:
        """Return the holder of a secret, None if it is not valid. Prolongs a device."""
        now = self._clock.now().timestamp()

        def select(db: "Connection") -> Credential | None:
            credential = _find(db, kind, secret, now)
            if credential is not None and credential.used_at < now - _TOUCH_S:
                expires_at = now + DEVICE_S if credential.expires_at is not None else None
                values = (now, expires_at, _hash(secret))
                db.execute("UPDATE credentials SET used_at = ?, expires_at = ? WHERE hash = ?", values)
            return credential

        return await self._database.ask(select, is_synced=False)

    async def use_link(self, secret: str, device: str) -> str | None:
        """Use up a one-time link and return the secret of a new device; None if the link is not valid."""
        now, device_secret = self._clock.now().timestamp(), secrets.token_urlsafe(32)

        def pair(db: "Connection") -> bool:
            link = _find(db, CredentialKind.LINK, secret, now)
            if link is None:
                return False
            db.execute("DELETE FROM credentials WHERE hash = ?", (_hash(secret),))
            numbered = (f"{device} {number}" for number in count(2))
            names = {name for (name,) in db.execute("SELECT name FROM credentials WHERE kind = 'device'")}
            name = next(name for name in chain([device], numbered) if name not in names)
            row = (_hash(device_secret), CredentialKind.DEVICE, name, link.role, now, now, now + DEVICE_S, "")
            db.execute("INSERT INTO credentials VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            return True

        return device_secret if await self._database.ask(pair) else None

    async def list(self, kind: CredentialKind) -> list[Credential]:
        """The valid credentials of a kind, oldest first."""
        now = self._clock.now().timestamp()

        def select(db: "Connection") -> list[Credential]:
            rows = db.execute(f"{_SELECT} ORDER BY created_at", (kind, now))
            return [_credential(row) for row in rows]

        return await self._database.ask(select, is_synced=False)

    async def revoke(self, kind: CredentialKind, name: str) -> bool:
        """Remove a credential. Return False if there is none."""

        def delete(db: "Connection") -> int:
            return db.execute("DELETE FROM credentials WHERE kind = ? AND name = ?", (kind, name)).rowcount

        return bool(await self._database.ask(delete))


_SELECT = (
    "SELECT kind, name, role, created_at, used_at, expires_at, person FROM credentials"
    " WHERE kind = ? AND (expires_at IS NULL OR expires_at >= ?)"
)


def _find(db: "Connection", kind: CredentialKind, secret: str, now: float) -> Credential | None:
    row = db.execute(f"{_SELECT} AND hash = ?", (kind, now, _hash(secret))).fetchone()
    return _credential(row) if row is not None else None


def _credential(row: tuple[str, str, str, float, float, float | None, str]) -> Credential:
    kind, name, role, created_at, used_at, expires_at, person = row
    return Credential(CredentialKind(kind), name, HttpRole(role), created_at, used_at, expires_at, person)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
