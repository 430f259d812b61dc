"""A token that is good now, for as many calls at once as there are.

It is renewed before it ends, and once more when a server refuses it all the same. Calls that need it at the same moment
share one renewal; processes take turns at a lock, and who comes second finds the new token in the file.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from nanobot.errors import StorageError
from nanobot.providers.errors import CallTarget
from nanobot.providers.oauth.accounts import Account, AccountStore
from nanobot.providers.oauth.errors import LoginNeededError
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock

MARGIN_S = 120.0
"""How long before its end a token is renewed: a call may take a while to set out."""
Renew = Callable[[Account], Awaitable[Account]]
"""Gets a new access token. Raises LoginNeededError where the grant is refused, else another ModelCallError."""

log = logging.getLogger(__name__)


class AccountTokens:
    """The tokens of one account, as the provider asks for them."""

    def __init__(self, provider: str, store: AccountStore, renew: Renew, clock: Clock | None = None) -> None:
        self._provider = provider
        self._store = store
        self._renew = renew
        self._clock = clock or SystemClock()
        self._known: Account | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._renewing: asyncio.Task[Account] | None = None

    @property
    def refused(self) -> str:
        """Why the login is taken no longer, as far as this process has met it; empty while all is well."""
        return self._known.refused if self._known is not None else ""

    async def current(self) -> Account:
        """The account with a token that holds. Raises LoginNeededError, StorageError, or what the renewal met."""
        account = self._load()
        if account.is_good_at(self._now(), MARGIN_S):
            return account
        return await self._shared(account)

    async def renewed(self, stale: Account) -> Account:
        """The account with another token than this one, which a server refused. Raises as `current` does."""
        account = self._load()
        if account.access_token != stale.access_token:
            return account
        return await self._shared(stale)

    async def close(self) -> None:
        """Let a renewal that is under way end: what it gets must be kept."""
        if self._renewing is not None and not self._renewing.done() and self._is_ours(self._renewing):
            await asyncio.wait((self._renewing,))

    def _load(self) -> Account:
        """From the file if it changed since; a login or a logout elsewhere is noticed at the next call."""
        stamp = self._store.stamp(self._provider)
        if self._known is None or stamp != self._stamp:
            self._known, self._stamp = self._store.load(self._provider), stamp
        if self._known is None:
            raise self._needed("nobody is logged in")
        if self._known.refused:
            raise self._needed(self._known.refused)
        return self._known

    async def _shared(self, stale: Account) -> Account:
        """One renewal for all who wait. Who is cancelled leaves the others waiting."""
        if self._renewing is None or self._renewing.done() or not self._is_ours(self._renewing):
            self._renewing = asyncio.create_task(finish(self._renew_once(stale)))
            self._renewing.add_done_callback(_seen)
        return await asyncio.shield(self._renewing)

    async def _renew_once(self, stale: Account) -> Account:
        async with self._store.held(self._provider):
            account = self._load()
            if account.access_token != stale.access_token and account.is_good_at(self._now(), 0):
                return account  # another process was quicker
            try:
                fresh = await self._renew(account)
            except LoginNeededError as refused:
                if refused.status in (400, 401):  # it will not be taken again: spare everybody the question
                    await self._keep(replace(account, refused=refused.detail or "the login has ended"))
                raise
            await self._keep(replace(fresh, refused=""))
            return fresh

    async def _keep(self, account: Account) -> None:
        self._known = account
        try:
            await asyncio.to_thread(self._store.save, account)
        except StorageError as error:  # this process goes on with what it got
            log.warning("The renewed login of %s could not be kept: %s", self._provider, error)
        self._stamp = self._store.stamp(self._provider)

    def _needed(self, why: str) -> LoginNeededError:
        return LoginNeededError(why, target=CallTarget(self._provider))

    def _now(self) -> float:
        return self._clock.now().timestamp()

    @staticmethod
    def _is_ours(task: "asyncio.Task[Account]") -> bool:
        return task.get_loop() is asyncio.get_running_loop()


def _seen(task: "asyncio.Task[Account]") -> None:
    """Whoever waited got the error; where nobody did any more, it is not worth a word."""
    if not task.cancelled():
        task.exception()
