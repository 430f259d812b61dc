"""The base of providers that use an account: each call gets a valid token, and a rejected one is renewed once."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import ClassVar, Unpack

from nanobot.config.provider_table import spec_for
from nanobot.providers.accounts.store import Account, AccountStore, AccountTokens, LoginNeededError, command_name
from nanobot.providers.base import Delta, ModelRequest
from nanobot.providers.custom_provider import EndpointProvider
from nanobot.providers.endpoint import Timeouts
from nanobot.providers.errors import AuthenticationError, ModelCallError
from nanobot.providers.wire.stream import ChatEndpoint, EndpointSettings, WireCall
from nanobot.utils.clock import Clock


class AccountProvider(EndpointProvider):
    """Base class: a subclass turns an account into a call."""

    default_name: ClassVar[str]
    default_base: ClassVar[str]
    default_timeouts: ClassVar[Timeouts]
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
        endpoint = ChatEndpoint.create(
            api_base or self.default_base,
            None,
            settings,
            name=self.default_name,
            config_key=f"providers.{spec_for(self.default_name).config_key}.apiBase",
            timeouts=self.default_timeouts,
        )
        super().__init__(endpoint, default_model)
        self._has_custom_base = bool(api_base)
        self._tokens = AccountTokens(self.name, store, self.renew, clock)

    def notes(self) -> list[str]:
        if not (why := self._tokens.refused):
            return []
        name = command_name(self.name)
        return [f"The login to {name} has ended ({why.rstrip('.')}). Run `nanobot provider login {name}`."]

    async def renew(self, account: Account) -> Account:
        """Return the account with a new token, as `AccountTokens` wants it."""
        raise NotImplementedError

    def create_call(self, account: Account, request: ModelRequest) -> WireCall:
        """Create the call, with the account's token in it."""
        raise NotImplementedError

    def endpoint_of(self, account: Account, headers: Mapping[str, str]) -> ChatEndpoint:
        """The endpoint with the account's token and address, and these headers unless the config overrides them."""
        endpoint = self._endpoint
        return replace(
            endpoint,
            api_base=endpoint.api_base if self._has_custom_base else account.api_base or endpoint.api_base,
            api_key=account.access_token,
            extra_headers={**headers, **endpoint.extra_headers},
        )

    def learn(self, _error: ModelCallError, _call: WireCall) -> bool:
        """Whether a failure taught something that makes a retry worthwhile."""
        return False

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        request = replace(request, model=request.model or self._default_model)
        account = await self._tokens.current()
        has_renewed = has_learned = has_emitted = False
        while True:
            call, started = self.create_call(account, request), time.monotonic()
            try:
                async with aclosing(call.run()) as deltas:
                    async for delta in deltas:
                        has_emitted = True
                        yield delta
                return
            except ModelCallError as error:
                took_s = time.monotonic() - started
                is_rejected = isinstance(error, AuthenticationError)
                if is_rejected and error.status in self.expired_statuses and not (has_renewed or has_emitted):
                    has_renewed, account = True, await self._tokens.replace_token(account)
                elif not (has_learned or has_emitted) and self.learn(error, call):
                    has_learned = True
                elif is_rejected and not isinstance(error, LoginNeededError):
                    # An account has no key to check: advise a login instead.
                    raise LoginNeededError(error.detail, target=error.target, status=error.status) from None
                else:
                    raise
                if self._on_fixup is not None:
                    self._on_fixup(error, request.model, took_s)

    async def close(self) -> None:
        """Wait for a renewal, then close idle connections."""
        await self._tokens.close()
        await super().close()
