"""Stored accounts: one private file each in `state/accounts/`, replaced atomically.

Two processes may renew the same account. Before renewing, take its lock and reread the file: a refresh token may be
valid only once, and reusing an old one may revoke the login.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from nanobot.errors import StorageError
from nanobot.providers.accounts.errors import command_name
from nanobot.security.redaction import learn_secrets
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import ProcessLock


@dataclass(frozen=True, slots=True)
class Account:
    """A logged-in account. Neither its repr nor any message shows its tokens."""

    provider: str
    authority: str
    """The address of the OAuth server; the grant is sent to no other."""
    grant: str = field(repr=False)
    """The long-lived credential that gets new tokens: OpenAI's refresh token, GitHub's user token."""
    access_token: str = field(default="", repr=False)
    """The short-lived token sent with requests."""
    expires_at: float | None = None
    """When the access token expires, in seconds since 1970."""
    name: str = ""
    """The user's name or e-mail address, for display."""
    plan: str = ""
    account_id: str = ""
    api_base: str = ""
    """The account's own API address, if the OAuth server sent one."""
    refused: str = ""
    """Why the OAuth server rejects the grant; empty while it accepts it."""

    def is_valid_at(self, moment: float, margin_s: float) -> bool:
        """Whether the access token is valid at this moment and for the margin after it."""
        return bool(self.access_token) and (self.expires_at is None or self.expires_at - margin_s > moment)

    @property
    def secrets(self) -> list[str]:
        return [secret for secret in (self.grant, self.access_token) if secret]


_TEXT_FIELDS = [entry.name for entry in fields(Account) if entry.name != "expires_at"]


class AccountStore:
    """`state/accounts/`: one file per account, named after the provider."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def in_state(cls, state_dir: Path) -> "AccountStore":
        return cls(state_dir / "accounts")

    def path(self, provider: str) -> Path:
        return self._folder / f"{provider}.json"

    @asynccontextmanager
    async def lock(self, provider: str) -> AsyncIterator[None]:
        """Lock an account across processes to renew, replace or delete it. Raises StorageError."""
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
        """The account; None if not logged in. Raises StorageError if the file is unusable."""
        path = self.path(provider)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise self._unusable(provider, type(error).__name__) from None
        account = _parse_account(data, provider)
        if account is None:
            raise self._unusable(provider, "it holds no account")
        learn_secrets(dict.fromkeys(account.secrets, f"the account of {provider}"))
        return account

    def save(self, account: Account) -> None:
        """Write the account, readable by this user only. Raises StorageError."""
        path = self.path(account.provider)
        learn_secrets(dict.fromkeys(account.secrets, f"the account of {account.provider}"))
        fields_to_store = {name: value for name, value in asdict(account).items() if value not in ("", None)}
        try:
            make_private_folder(self._folder)
            write_atomic(path, json.dumps(fields_to_store, indent=2) + "\n", mode=PRIVATE_FILE)
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error.strerror}. Free some disk space and log in again."
            ) from None

    def delete(self, provider: str) -> bool:
        """Delete the account. Return False if there was none. Raises StorageError."""
        path = self.path(provider)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"{path} cannot be deleted: {error.strerror}. Delete it by hand.") from None
        return True

    def file_version(self, provider: str) -> tuple[int, int, int] | None:
        """A value that changes with the file; None if there is no file."""
        try:
            state = self.path(provider).stat()
        except OSError:
            return None
        return state.st_mtime_ns, state.st_size, state.st_ino

    def all(self) -> Iterator[Account]:
        """Every readable account."""
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
            f"{self.path(provider)} cannot be used ({why}). Run `nanobot provider login {command_name(provider)}`."
        )


def _parse_account(data: Any, provider: str) -> Account | None:
    if not isinstance(data, dict):
        return None
    texts = {name: data[name] for name in _TEXT_FIELDS if isinstance(data.get(name), str)}
    if not texts.get("grant") or "authority" not in texts:
        return None
    expires_at = data.get("expires_at")
    return Account(
        **{**texts, "provider": provider},
        expires_at=float(expires_at) if isinstance(expires_at, int | float) else None,
    )
