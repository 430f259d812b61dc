"""The base of providers that use an account: each call gets a valid token, and a rejected one is renewed once."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import ClassVar, Unpack

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.accounts.store import Account, AccountStore, AccountTokens, LoginNeededError, command_name
from nanobot.providers.base import Delta, LLMProvider
from nanobot.providers.errors import AuthenticationError, ModelCallError
from nanobot.providers.wire.stream import Endpoint, EndpointSettings, FixupCallback, WireCall
from nanobot.utils.clock import Clock


class AccountProvider(LLMProvider):
    """Base class: a subclass turns an account into a call."""

    default_endpoint: ClassVar[Endpoint]
    expired_statuses: ClassVar[frozenset[int]] = frozenset({401})
    """Statuses that mean the token has expired."""

    def __init__(
        self,
        store: AccountStore,
        default_model: str,
        *,
        api_base: str | None = None,
        clock: Clock | None = None,
        **settings: Unpack[EndpointSettings],
    ) -> None:
        endpoint = self.default_endpoint.with_settings(api_base, settings)
        super().__init__(None, endpoint.api_base)
        self.name = endpoint.name
        self._endpoint = endpoint
        self._has_custom_base = bool(api_base)
        self._default_model = default_model
        self._on_fixup: FixupCallback | None = None
        self._tokens = AccountTokens(endpoint.name, store, self.renew, clock)

    def get_default_model(self) -> str:
        """The model used when a call names none."""
        return self._default_model

    def notes(self) -> list[str]:
        if not (why := self._tokens.refused):
            return []
        name = command_name(self.name)
        return [f"The login to {name} has ended ({why.rstrip('.')}). Run `nanobot provider login {name}`."]

    def prepare(self) -> None:
        """Start loading the HTTP client in a thread."""
        self._endpoint.pools.prepare(self._endpoint.api_base)

    def on_fixup(self, callback: FixupCallback) -> None:
        """Report each request that is rejected and sent again, modified or with another token."""
        self._on_fixup = callback

    async def renew(self, account: Account) -> Account:
        """Return the account with a new token, as `AccountTokens` wants it."""
        raise NotImplementedError

    def create_call(
        self,
        account: Account,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema],
        model: str,
        max_tokens: int,
        temperature: float,
    ) -> WireCall:
        """Create the call, with the account's token in it."""
        raise NotImplementedError

    def learn(self, _error: ModelCallError, _account: Account, _model: str) -> bool:
        """Whether a failure taught something that makes a retry worthwhile."""
        return False

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """Yield deltas as they arrive, then one Finished. Raises a ModelCallError; cancelling closes the connection."""
        model = model or self._default_model
        account = await self._tokens.current()
        tried: set[str] = set()
        while True:
            call = self.create_call(account, messages, tools or (), model, max_tokens, temperature)
            has_emitted, started = False, time.monotonic()
            try:
                async with aclosing(call.run()) as stream:
                    async for delta in stream:
                        has_emitted = True
                        yield delta
                return
            except ModelCallError as error:
                took_s = time.monotonic() - started
                retry_account = None if has_emitted else await self._account_for_retry(error, account, model, tried)
                if retry_account is None:
                    raise _as_login_error(error) from None
                account = retry_account
                if self._on_fixup is not None:
                    self._on_fixup(error, model, took_s)

    async def _account_for_retry(
        self, error: ModelCallError, account: Account, model: str, tried: set[str]
    ) -> Account | None:
        """The account for a retry; None if there is nothing left to try. Each remedy is tried once."""
        if isinstance(error, AuthenticationError) and error.status in self.expired_statuses and "renewed" not in tried:
            tried.add("renewed")
            return await self._tokens.replace_token(account)
        if "learned" not in tried and self.learn(error, account, model):
            tried.add("learned")
            return account
        return None

    async def close(self) -> None:
        """Wait for a renewal, then close idle connections."""
        await self._tokens.close()
        await self._endpoint.pools.close()


def _as_login_error(error: ModelCallError) -> ModelCallError:
    """An account has no key to check: advise a login instead."""
    if not isinstance(error, AuthenticationError) or isinstance(error, LoginNeededError):
        return error
    return LoginNeededError(error.detail, target=error.target, status=error.status, retry_after_s=error.retry_after_s)
