"""Provides a valid access token for concurrent calls.

A token is renewed shortly before it expires, and when a server rejects it. Concurrent calls share one renewal;
processes take turns with a lock, and the second one finds the new token in the file.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from nanobot.errors import StorageError
from nanobot.providers.accounts.errors import LoginNeededError
from nanobot.providers.accounts.store import Account, AccountStore
from nanobot.providers.errors import CallTarget
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock

MARGIN_S = 120.0
"""How long before its expiry a token is renewed: a call may take a while to be sent."""
Renew = Callable[[Account], Awaitable[Account]]
"""Gets a new access token. Raises LoginNeededError if the grant is rejected, else another ModelCallError."""

log = logging.getLogger(__name__)


class AccountTokens:
    def __init__(self, provider: str, store: AccountStore, renew: Renew, clock: Clock | None = None) -> None:
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
        if account.is_valid_at(self._now(), MARGIN_S):
            return account
        return await self._share_renewal(account)

    async def replace_token(self, stale: Account) -> Account:
        """The account with another token than `stale`, which a server rejected. Raises as `current` does."""
        account = self._load()
        if account.access_token != stale.access_token:
            return account
        return await self._share_renewal(stale)

    async def close(self) -> None:
        """Wait for a renewal in flight: its result must be saved."""
        if self._renewing is not None and not self._renewing.done() and self._is_ours(self._renewing):
            await asyncio.wait((self._renewing,))

    def _load(self) -> Account:
        """The account, reloaded if the file changed: a login or logout elsewhere applies from the next call on."""
        file_version = self._store.file_version(self._provider)
        if self._account is None or file_version != self._file_version:
            self._account, self._file_version = self._store.load(self._provider), file_version
        if self._account is None:
            raise self._login_needed("not logged in")
        if self._account.refused:
            raise self._login_needed(self._account.refused)
        return self._account

    async def _share_renewal(self, stale: Account) -> Account:
        """One renewal for all callers. Cancelling one caller does not cancel the renewal."""
        if self._renewing is None or self._renewing.done() or not self._is_ours(self._renewing):
            self._renewing = asyncio.create_task(finish(self._renew_once(stale)))
            self._renewing.add_done_callback(_consume_error)
        return await asyncio.shield(self._renewing)

    async def _renew_once(self, stale: Account) -> Account:
        async with self._store.lock(self._provider):
            account = self._load()
            if account.access_token != stale.access_token and account.is_valid_at(self._now(), 0):
                return account  # another process was quicker
            try:
                renewed = await self._renew(account)
            except LoginNeededError as refused:
                if refused.status in (400, 401):  # final: store it, so that no later call asks again
                    await self._save(replace(account, refused=refused.detail or "the login has ended"))
                raise
            await self._save(replace(renewed, refused=""))
            return renewed

    async def _save(self, account: Account) -> None:
        self._account = account
        try:
            await asyncio.to_thread(self._store.save, account)
        except StorageError as error:  # this process continues with the new token
            log.warning("The renewed login of %s could not be saved: %s", self._provider, error)
        self._file_version = self._store.file_version(self._provider)

    def _login_needed(self, why: str) -> LoginNeededError:
        return LoginNeededError(why, target=CallTarget(self._provider))

    def _now(self) -> float:
        return self._clock.now().timestamp()

    @staticmethod
    def _is_ours(task: "asyncio.Task[Account]") -> bool:
        return task.get_loop() is asyncio.get_running_loop()


def _consume_error(task: "asyncio.Task[Account]") -> None:
    """The waiting callers have the error. If none is left, it may be dropped silently."""
    if not task.cancelled():
        task.exception()
