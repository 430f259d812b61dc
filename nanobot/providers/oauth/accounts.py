"""What is kept of an account: one private file each in `state/accounts/`, replaced in one step.

Two processes may renew the same account. Who does holds its lock and reads the file again first: a refresh token may be
good for one use only, and whoever uses the old one a second time may be logged out of all.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from nanobot.errors import StorageError
from nanobot.providers.oauth.errors import spoken
from nanobot.security.vault import learn
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import ProcessLock


@dataclass(frozen=True, slots=True)
class Account:
    """An account somebody logged in to. Its tokens are in neither its repr nor any message."""

    provider: str
    authority: str
    """The address that gave the tokens: they go to no other."""
    grant: str = field(repr=False)
    """What lasts, and gets new tokens: OpenAI's refresh token, GitHub's user token."""
    access_token: str = field(default="", repr=False)
    """What goes with a request, for a while."""
    expires_at: float | None = None
    """When the access token ends, in seconds since 1970."""
    name: str = ""
    """Who it is, for a person to read."""
    plan: str = ""
    account_id: str = ""
    api_base: str = ""
    """Where this account's requests go, if the authority says so."""
    refused: str = ""
    """Why the authority takes the grant no longer; empty while it does."""

    def is_good_at(self, moment: float, margin_s: float) -> bool:
        """Whether the access token holds for so long after this moment."""
        return bool(self.access_token) and (self.expires_at is None or self.expires_at - margin_s > moment)

    @property
    def secrets(self) -> list[str]:
        """What no message may hold."""
        return [secret for secret in (self.grant, self.access_token) if secret]


_TEXTS = [entry.name for entry in fields(Account) if entry.name != "expires_at"]


class AccountStore:
    """`state/accounts/`: a file an account, under the provider's name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def in_state(cls, state_dir: Path) -> "AccountStore":
        """The accounts of a state folder."""
        return cls(state_dir / "accounts")

    def path(self, provider: str) -> Path:
        """Where that account is."""
        return self._folder / f"{provider}.json"

    @asynccontextmanager
    async def held(self, provider: str) -> AsyncIterator[None]:
        """What whoever renews, replaces or deletes it holds meanwhile, across processes. Raises StorageError."""
        lock = ProcessLock(self._folder / f"{provider}.lock")
        try:
            await lock.acquire()
        except OSError as error:
            raise StorageError(f"{self.path(provider)} cannot be locked: {error.strerror}.") from None
        try:
            yield
        finally:
            lock.release()

    def load(self, provider: str) -> Account | None:
        """The account; None where nobody is logged in. Raises StorageError for a file that cannot be used."""
        path = self.path(provider)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise self._unusable(provider, type(error).__name__) from None
        account = _account(data, provider)
        if account is None:
            raise self._unusable(provider, "it holds no account")
        learn(account.secrets, f"the account of {provider}")
        return account

    def save(self, account: Account) -> None:
        """Keep it, for this user's eyes alone. Raises StorageError."""
        path = self.path(account.provider)
        learn(account.secrets, f"the account of {account.provider}")
        kept = {name: value for name, value in asdict(account).items() if value not in ("", None)}
        try:
            make_private_folder(self._folder)
            write_atomic(path, json.dumps(kept, indent=2) + "\n", mode=PRIVATE_FILE)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}. Make room, and log in again.") from None

    def delete(self, provider: str) -> bool:
        """Forget it. False where there was nothing. Raises StorageError."""
        path = self.path(provider)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"{path} cannot be deleted: {error.strerror}. Delete it by hand.") from None
        return True

    def stamp(self, provider: str) -> tuple[int, int, int] | None:
        """What changes when the file does; None without one."""
        try:
            found = self.path(provider).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def all(self) -> Iterator[Account]:
        """Every account that can be read."""
        try:
            paths = sorted(self._folder.glob("*.json"))
        except OSError:
            return
        for path in paths:
            try:
                account = self.load(path.stem)
            except StorageError:
                continue
            if account is not None:
                yield account

    def _unusable(self, provider: str, why: str) -> StorageError:
        return StorageError(
            f"{self.path(provider)} cannot be used ({why}). Run `nanobot provider login {spoken(provider)}`."
        )


def _account(data: Any, provider: str) -> Account | None:
    if not isinstance(data, dict):
        return None
    texts = {name: data[name] for name in _TEXTS if isinstance(data.get(name), str)}
    if not texts.get("grant") or "authority" not in texts:
        return None
    expires_at = data.get("expires_at")
    return Account(
        **{**texts, "provider": provider},
        expires_at=float(expires_at) if isinstance(expires_at, int | float) else None,
    )
