"""What providers with an account have in common: their sign-in server, and a valid token for each call.

What is secret in a login is learned before it is sent, so that no text shows it. A token is renewed shortly before it
expires, and once when a server rejects it. Concurrent calls share one renewal. Processes take turns with a lock, and
the second one finds the new token in the file: a refresh token may be valid only once, and reusing an old one may
revoke the login.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Unpack
from urllib.parse import urlencode, urlsplit

from nanobot.config.provider_table import spec_for
from nanobot.errors import StorageError
from nanobot.net.http import is_loopback
from nanobot.net.pools import HttpPools
from nanobot.providers.accounts.store import Account, AccountStore, LoginNeededError, command_name
from nanobot.providers.base import Delta, ModelRequest
from nanobot.providers.custom_provider import EndpointProvider
from nanobot.providers.endpoint import Endpoint, Timeouts
from nanobot.providers.error_patterns import retry_after_s
from nanobot.providers.errors import (
    AuthenticationError,
    CallTarget,
    ConnectionFailedError,
    MalformedResponseError,
    ModelCallError,
    ModelOverloadedError,
    ProviderTimeoutError,
    RateLimitedError,
    kind_of_status,
)
from nanobot.providers.wire.stream import ChatEndpoint, EndpointSettings, WireCall
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock

log = logging.getLogger(__name__)
MARGIN_S = 120.0
"""How long before its expiry a token is renewed: a call may take a while to be sent."""


class LoginScreen(Protocol):
    """A person's terminal, with a browser if there is one."""

    def say(self, text: str) -> None: ...

    def show(self, intro: str, value: str, outro: str = "") -> None:
        """Show a URL or code, with a line before it and a hint after it."""
        ...

    def open(self, url: str) -> None:
        """Open a page in the user's browser, if there is one. Returns at once, never raises."""
        ...

    async def read_line(self) -> str:
        """The next line the user types; waits forever if there is no terminal."""
        ...


class AuthorityUnreachableError(ConnectionFailedError):
    """The OAuth server did not respond."""

    what = "The sign-in server cannot be reached"
    next_step = "Check the network, and try again."


class AuthorityAnswerError(MalformedResponseError):
    """The OAuth server's response has no token."""

    what = "The sign-in server sent an unexpected response"
    next_step = "Check the network (a portal, a proxy), and try again."


@dataclass(frozen=True, slots=True)
class OAuthResponse:
    status: int
    data: dict[str, Any]
    retry_after_s: float | None = None

    def text(self, name: str) -> str:
        """A string field; empty if missing."""
        value = self.data.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> float | None:
        value = self.data.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def error(self) -> str:
        """The error code (RFC 6749, 5.2); OpenAI nests it one level deeper."""
        error = self.data.get("error")
        if isinstance(error, dict):
            return next((text for name in ("code", "type") if isinstance(text := error.get(name), str)), "error")
        return error if isinstance(error, str) else ""

    @property
    def reason(self) -> str:
        """The server's explanation of an error."""
        for holder in (self.data.get("error"), self.data.get("error_details"), self.data):
            if isinstance(holder, dict):
                for name in ("error_description", "message", "detail"):
                    if isinstance(text := holder.get(name), str) and text:
                        return text
        return self.error or f"HTTP {self.status}"


class SignInServer:
    """One OAuth server, as one provider's."""

    def __init__(self, pools: HttpPools, provider: str, authority: str) -> None:
        self._endpoint = Endpoint(provider, authority, timeouts=Timeouts(connect_s=10, total_s=30), pools=pools)

    async def post(self, url: str, form: Mapping[str, str]) -> OAuthResponse:
        """Send a form. Raises a ModelCallError if there is no response; an error response is returned."""
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return await self._send("POST", url, headers, urlencode(form).encode())

    async def get(self, url: str, headers: Mapping[str, str]) -> OAuthResponse:
        """Fetch a URL. Raises as `post` does."""
        return await self._send("GET", url, headers)

    async def _send(self, method: str, url: str, headers: Mapping[str, str], content: bytes = b"") -> OAuthResponse:
        try:
            status, head, body = await self._endpoint.fetch(method, url, headers, content)
        except (ConnectionFailedError, ProviderTimeoutError, MalformedResponseError) as error:
            raise AuthorityUnreachableError(error.detail, target=error.target) from None
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            data = None
        return OAuthResponse(status, data if isinstance(data, dict) else {}, retry_after_s(head))

    def error_for(self, response: OAuthResponse) -> ModelCallError:
        """The typed error of a response that reports one or lacks the expected data."""
        kind = kind_of_status(response.status)
        if kind not in (RateLimitedError, ModelOverloadedError):
            kind = LoginNeededError if response.status >= 400 else AuthorityAnswerError
        error = self._endpoint.error(kind, response.reason, status=response.status)
        error.retry_after_s = response.retry_after_s
        return error

    def answer_error(self, detail: str) -> ModelCallError:
        return self._endpoint.error(AuthorityAnswerError, detail)


def address_problem(address: str) -> str:
    """Why tokens must not be fetched from this address; empty if they may."""
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.query or parts.fragment:
        return "it is not the address of a server"
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)):
        return ""
    return "it must begin with https://"


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
        self._unsaved: tuple[Account | None, Account] | None = None
        """What the file has in place of a renewed account, which the disk refused; and that account."""
        self._renewing: asyncio.Task[Account] | None = None

    @property
    def account(self) -> Account | None:
        """The account as it is now: a login or logout elsewhere applies from the next call on. Raises StorageError."""
        account = self._store.load(self._provider)
        return self._unsaved[1] if self._unsaved is not None and self._unsaved[0] == account else account

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
        account = self.account
        if account is None or account.refused:
            why = account.refused if account is not None else "not logged in"
            raise LoginNeededError(why, target=CallTarget(self._provider))
        return account

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
                renewed = replace(await self._renew(account), refused="")
            except LoginNeededError as error:
                if error.status not in (400, 401):
                    raise
                refusal = error  # final: store it, so that no later call asks again
                renewed = replace(account, refused=error.detail or "the login has ended")
            try:
                await asyncio.to_thread(self._store.save, renewed)
            except StorageError as error:  # this process continues with the new token
                log.warning("The renewed login of %s could not be saved: %s", self._provider, error)
                self._unsaved = (self._store.load(self._provider), renewed)
            if refusal is not None:
                raise refusal
            return renewed


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
        self._tokens = AccountTokens(self.name, store, self.renew)

    def notes(self) -> list[str]:
        try:
            account = self._tokens.account
        except StorageError as error:
            return [str(error)]
        if account is None or not account.refused:
            return []
        name = command_name(self.name)
        return [f"The login to {name} has ended ({account.refused.rstrip('.')}). Run `nanobot provider login {name}`."]

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
