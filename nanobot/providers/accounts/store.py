"""Stored accounts: one private file each in `state/accounts/`."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.errors import ProviderError, StorageError
from nanobot.providers.errors import AuthenticationError
from nanobot.security.secrets import learn_secrets
from nanobot.utils import codec
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import ProcessLock
from nanobot.utils.storage_error import storage_errors


def command_name(provider: str) -> str:
    """The provider's name in commands: `openai-codex`."""
    return provider.replace("_", "-")


class LoginFailedError(ProviderError):
    """The login failed; the text says why and what to do."""


class LoginNeededError(AuthenticationError):
    """The account's tokens are missing, expired or insufficient for the request."""

    what = "The sign-in was rejected"

    def advice(self) -> str:
        """The next step. With a 403 the login is valid, but lacks permission."""
        command = f"`nanobot provider login {command_name(self.target.provider)}`"
        if self.status == 403:
            return f"Check what this account may use, or log in to another one with {command}."
        return f"Run {command}."


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

    def __post_init__(self) -> None:
        learn_secrets(dict.fromkeys(self.secrets, f"the account of {self.provider}"))

    @property
    def secrets(self) -> list[str]:
        return [secret for secret in (self.grant, self.access_token) if secret]


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
        with storage_errors(f"{self.path(provider)} cannot be locked"):
            await lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def load(self, provider: str) -> Account | None:
        """The account; None if not logged in. Raises StorageError if the file is unusable."""
        path = self.path(provider)
        try:
            return codec.from_json(Account, path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StorageError(
                f"{path} cannot be used ({type(error).__name__}). Run `nanobot provider login "
                f"{command_name(provider)}`."
            ) from None

    def save(self, account: Account) -> None:
        """Write the account, readable by this user only. Raises StorageError."""
        path = self.path(account.provider)
        with storage_errors(f"{path} cannot be written"):
            make_private_folder(self._folder)
            write_atomic(path, codec.to_json(account, exclude_defaults=True) + "\n", mode=PRIVATE_FILE)

    def delete(self, provider: str) -> bool:
        """Delete the account. Return False if there was none. Raises StorageError."""
        path = self.path(provider)
        with storage_errors(f"{path} cannot be deleted"):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
        return True

    def all(self) -> Iterator[Account]:
        """Every readable account."""
        for path in sorted(self._folder.glob("*.json")):
            try:
                account = self.load(path.stem)
            except StorageError:
                continue
            if account is not None:
                yield account
