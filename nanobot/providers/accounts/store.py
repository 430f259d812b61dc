"""Stored accounts, one private file each in `state/accounts/`, and a valid access token for concurrent calls.

A token is renewed shortly before it expires, and when a server rejects it. Concurrent calls share one renewal.
Processes take turns with a lock, and the second one finds the new token in the file: a refresh token may be valid only
once, and reusing an old one may revoke the login.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.errors import ProviderError, StorageError
from nanobot.providers.errors import AuthenticationError, CallTarget
from nanobot.security.secrets import learn_secrets
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import ProcessLock

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MARGIN_S = 120.0
"""How long before its expiry a token is renewed: a call may take a while to be sent."""

log = logging.getLogger(__name__)


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


@cache
def _codec() -> "TypeAdapter[Account]":
    from pydantic import TypeAdapter  # only a process with an account needs it

    return TypeAdapter(Account)


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
            return _codec().validate_json(path.read_bytes())
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
        fields = {name: value for name, value in asdict(account).items() if value not in ("", None)}
        try:
            make_private_folder(self._folder)
            write_atomic(path, json.dumps(fields, indent=2) + "\n", mode=PRIVATE_FILE)
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
        for path in sorted(self._folder.glob("*.json")):
            try:
                account = self.load(path.stem)
            except StorageError:
                continue
            if account is not None:
                yield account


class AccountTokens:
    """The account of one provider with a valid token."""

    def __init__(
        self,
        provider: str,
        store: AccountStore,
        renew: Callable[[Account], Awaitable[Account]],
        clock: Clock | None = None,
    ) -> None:
        """`renew` gets a new access token. It raises LoginNeededError if the grant is rejected, else another
        ModelCallError.
        """
        self._provider = provider
        self._store = store
        self._renew = renew
        self._clock = clock or SystemClock()
        self._account: Account | None = None
        self._file_version: tuple[int, int, int] | None = None
        self._renewing: asyncio.Task[Account] | None = None

    @property
    def refused(self) -> str:
        """Why the login is no longer accepted, as far as this process knows; empty if it is."""
        return self._account.refused if self._account is not None else ""

    async def current(self) -> Account:
        """The account with a valid token. Raises LoginNeededError, StorageError, or the error of the renewal."""
        account = self._load()
        return account if self._is_valid(account, MARGIN_S) else await self._share_renewal(account)

    async def replace_token(self, stale: Account) -> Account:
        """The account with another token than `stale`, which a server rejected. Raises as `current` does."""
        account = self._load()
        return account if account.access_token != stale.access_token else await self._share_renewal(stale)

    async def close(self) -> None:
        """Wait for a renewal in flight: its result must be saved."""
        if self._renewing is not None and not self._renewing.done():
            await asyncio.wait((self._renewing,))

    def _is_valid(self, account: Account, margin_s: float) -> bool:
        expires_at = account.expires_at
        is_expired = expires_at is not None and expires_at - margin_s <= self._clock.now().timestamp()
        return bool(account.access_token) and not is_expired

    def _load(self) -> Account:
        """The account, reloaded if the file changed: a login or logout elsewhere applies from the next call on."""
        file_version = self._store.file_version(self._provider)
        if self._account is None or file_version != self._file_version:
            self._account, self._file_version = self._store.load(self._provider), file_version
        if self._account is None or self._account.refused:
            why = self._account.refused if self._account is not None else "not logged in"
            raise LoginNeededError(why, target=CallTarget(self._provider))
        return self._account

    async def _share_renewal(self, stale: Account) -> Account:
        """One renewal for all callers. Cancelling one caller does not cancel the renewal."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(finish(self._renew_once(stale)))
            # The waiting callers have its error. If none is left, it may be dropped silently.
            self._renewing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._renewing)

    async def _renew_once(self, stale: Account) -> Account:
        async with self._store.lock(self._provider):
            account = self._load()
            if account.access_token != stale.access_token and self._is_valid(account, 0):
                return account  # another process was quicker
            refusal: LoginNeededError | None = None
            try:
                self._account = replace(await self._renew(account), refused="")
            except LoginNeededError as error:
                if error.status not in (400, 401):
                    raise
                refusal = error  # final: store it, so that no later call asks again
                self._account = replace(account, refused=error.detail or "the login has ended")
            try:
                await asyncio.to_thread(self._store.save, self._account)
            except StorageError as error:  # this process continues with the new token
                log.warning("The renewed login of %s could not be saved: %s", self._provider, error)
            self._file_version = self._store.file_version(self._provider)
            if refusal is not None:
                raise refusal
            return self._account
