"""A provider reached by an account: each call takes a token that is good now, and a refused one is renewed once."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import ClassVar, Protocol

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import Delta, LLMProvider
from nanobot.providers.errors import AuthenticationError, ModelCallError
from nanobot.providers.exchange import Call, Endpoint, Mended
from nanobot.providers.oauth.accounts import Account, AccountStore
from nanobot.providers.oauth.errors import LoginNeededError, spoken
from nanobot.providers.oauth.tokens import AccountTokens
from nanobot.utils.clock import Clock
from nanobot.utils.http import HttpPools


class Renewal(Protocol):
    """Gets an account another token."""

    async def __call__(self, account: Account, pools: HttpPools) -> Account:
        """Raises LoginNeededError where the account is refused."""
        ...


class AccountProvider(LLMProvider):
    """What such providers share. One of them says how an account becomes a call."""

    stale: ClassVar[frozenset[int]] = frozenset({401})
    """What a server says of a token that has ended."""

    def __init__(
        self, endpoint: Endpoint, default_model: str, store: AccountStore, renew: Renewal, clock: Clock | None = None
    ) -> None:
        super().__init__(None, endpoint.api_base)
        self.name = endpoint.name
        self._endpoint = endpoint
        self._default_model = default_model
        self._mended: Mended | None = None
        self._tokens = AccountTokens(endpoint.name, store, partial(renew, pools=endpoint.pools), clock)

    def get_default_model(self) -> str:
        """The model asked when a call names none."""
        return self._default_model

    def notes(self) -> list[str]:
        """That the login has ended, until somebody logs in again."""
        if not (why := self._tokens.refused):
            return []
        name = spoken(self.name)
        return [f"The login to {name} has ended ({why.rstrip('.')}). Run `nanobot provider login {name}`."]

    def prepare(self) -> None:
        """Begin to load the HTTP client in a thread."""
        self._endpoint.pools.prepare(self._endpoint.api_base)

    def watch_mends(self, told: Mended) -> None:
        """Tell of each request that is refused and sent again, with less or with another token."""
        self._mended = told

    def call_for(
        self,
        account: Account,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema],
        model: str,
        max_tokens: int,
        temperature: float,
    ) -> Call:
        """The call, with the account's token in it."""
        raise NotImplementedError

    def learn(self, _error: ModelCallError, _account: Account, _model: str) -> bool:
        """Whether a failure taught something that makes another try worth it."""
        return False

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """Deltas as they come, then one Finished. Raises a ModelCallError; cancelling closes the connection."""
        model = model or self._default_model
        account = await self._tokens.current()
        tried: set[str] = set()
        while True:
            call = self.call_for(account, messages, tools or (), model, max_tokens, temperature)
            told, started = False, time.monotonic()
            try:
                async with aclosing(call.run()) as stream:
                    async for delta in stream:
                        told = True
                        yield delta
                return
            except ModelCallError as error:
                took_s = time.monotonic() - started
                better = None if told else await self._better(error, account, model, tried)
                if better is None:
                    raise _in_our_words(error) from None
                account = better
                if self._mended is not None:
                    self._mended(error, model, took_s)

    async def _better(self, error: ModelCallError, account: Account, model: str, tried: set[str]) -> Account | None:
        """The account for another try; None where there is nothing left to try. Each way is gone once."""
        if isinstance(error, AuthenticationError) and error.status in self.stale and "renewed" not in tried:
            tried.add("renewed")
            return await self._tokens.renewed(account)
        if "learned" not in tried and self.learn(error, account, model):
            tried.add("learned")
            return account
        return None

    async def close(self) -> None:
        """Let a renewal end, then close idle connections."""
        await self._tokens.close()
        await self._endpoint.pools.close()


def _in_our_words(error: ModelCallError) -> ModelCallError:
    """A refused account has no key that could be checked: somebody must log in."""
    if not isinstance(error, AuthenticationError) or isinstance(error, LoginNeededError):
        return error
    return LoginNeededError(error.detail, target=error.target, status=error.status, retry_after_s=error.retry_after_s)
