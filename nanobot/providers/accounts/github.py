"""GitHub Copilot: login by device code, its short-lived tokens, and the provider: chat completions, at the address that
comes with the token.

Sources: GitHub's page on the device flow (docs.github.com, "Authorizing OAuth apps"). Copilot has no public reference,
so the rest is what editors send and servers were observed to require: the client id of the editors and the token
address `copilot_internal/v2/token` (litellm and zed-industries/zed, both public), the fields `token`, `expires_at`,
`refresh_in` and `endpoints.api`, and "missing Editor-Version header for IDE auth" if an editor does not identify itself
(BerriAI/litellm issue 13256 and many more). Addresses of GitHub Enterprise: docs.github.com, "Network details for
GHE.com" (`api.NAME.ghe.com`) and its REST reference for a self-hosted server (`HOST/api/v3`).

Besides the editor headers Copilot wants to know whether the user or the agent speaks (`X-Initiator`: an agent's steps
do not count as user requests) and whether there are images (`Copilot-Vision-Request`). Some models only answer at
`/responses` and say so: "not accessible via the /chat/completions endpoint". That is learned once and stored.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

from nanobot.messages.types import is_synthetic
from nanobot.net.pools import HttpPools
from nanobot.providers.accounts.provider import AccountProvider, AuthorityUnreachableError, LoginScreen, SignInServer
from nanobot.providers.accounts.store import Account, LoginFailedError, LoginNeededError
from nanobot.providers.base import ModelRequest
from nanobot.providers.endpoint import Timeouts
from nanobot.providers.errors import ModelCallError
from nanobot.providers.wire.chat import ChatCall
from nanobot.providers.wire.responses import ResponsesCall
from nanobot.providers.wire.rows import has_images
from nanobot.providers.wire.stream import WireCall
from nanobot.security.secrets import learn_secrets

API = "https://api.githubcopilot.com"
NEEDS_RESPONSES = "need responses"
"""What is stored for a model that only speaks the Responses wire."""
PROVIDER = "github_copilot"
HOST = "https://github.com"
EDITOR_HEADERS = {
    "Editor-Version": "vscode/1.107.0",
    "Editor-Plugin-Version": "copilot-chat/0.35.0",
    "Copilot-Integration-Id": "vscode-chat",
}
"""Copilot serves only editors and accepts only names it knows."""
_EXPIRY_MARGIN_S = 60.0
"""How much longer a token is valid than `refresh_in`, after which it should be renewed."""
_SLOW_DOWN_S = 5.0
"""Added to the interval when the server says slow_down (RFC 8628, 3.5)."""
_DEVICE_ERRORS = {
    "access_denied": "The login was refused on the page.",
    "expired_token": "The code expired before it was typed.",
}
Sleep = Callable[[float], Awaitable[None]]


def api_url(host: str) -> str:
    parts = urlsplit(host)
    name = parts.hostname or ""
    if name == "github.com" or name.endswith(".ghe.com"):
        return f"{parts.scheme}://api.{name}"
    return f"{host}/api/v3"


async def _device_login(server: SignInServer, host: str, screen: LoginScreen, sleep: Sleep) -> str:
    """Show a short code, which the user types on a page, poll until that is done, and return the token (RFC 8628).

    Raises LoginFailedError if it was denied or has expired, or a ModelCallError.
    """
    device_url, client = f"{host}/login/device/code", {"client_id": "Iv1.b507a08c87ecfe98"}
    started = await server.post(device_url, {**client, "scope": "read:user"})
    device_code, user_code = started.text("device_code"), started.text("user_code")
    if started.status != 200 or not (device_code and user_code):
        raise LoginFailedError(f"The login at {device_url} could not be started: {started.reason}.")
    learn_secrets({device_code: "a login"})
    page = started.text("verification_uri")
    screen.show(f"Open {page} and type this code:", user_code)
    screen.open(page)
    poll = {**client, "device_code": device_code, "grant_type": "urn:ietf:params:oauth:grant-type:device_code"}
    interval_s = started.number("interval")
    interval_s = 5.0 if interval_s is None else interval_s
    deadline = time.monotonic() + (started.number("expires_in") or 900.0)
    failure = _DEVICE_ERRORS["expired_token"]
    while time.monotonic() < deadline:
        await sleep(interval_s)
        try:
            response = await server.post(f"{host}/login/oauth/access_token", poll)
        except AuthorityUnreachableError:  # no network for a moment; RFC 8628 asks for a longer interval
            interval_s *= 2
            continue
        if token := response.text("access_token"):
            return token
        if response.error == "slow_down" or response.status == 429 or response.status >= 500:
            interval_s = response.number("interval") or interval_s + _SLOW_DOWN_S
        elif response.error != "authorization_pending":
            failure = _DEVICE_ERRORS.get(response.error) or (
                f"The login was not completed: {server.error_for(response).detail}."
            )
            break
    raise LoginFailedError(f"{failure} Run the command again.")


async def log_in(host: str, pools: HttpPools, screen: LoginScreen, sleep: Sleep = asyncio.sleep) -> Account:
    """Log in with a code typed on a GitHub page; at public GitHub if `host` is empty. Raises LoginFailedError, or a
    ModelCallError.
    """
    host = host.rstrip("/") or HOST
    server = SignInServer(pools, PROVIDER, host)
    grant = await _device_login(server, host, screen, sleep)
    try:
        account = await renew(Account(PROVIDER, host, grant), pools)
    except LoginNeededError as error:
        raise LoginFailedError(f"This GitHub account has no Copilot here: {error.detail}") from None
    with suppress(ModelCallError):  # the name is only shown
        user = await server.get(f"{api_url(host)}/user", {"Authorization": f"token {grant}"})
        account = replace(account, name=user.text("login"))
    return account


async def renew(account: Account, pools: HttpPools) -> Account:
    """The account with a new Copilot token. Raises what `AccountTokens` says."""
    server = SignInServer(pools, PROVIDER, account.authority)
    headers = {"Authorization": f"token {account.grant}", **EDITOR_HEADERS}
    response = await server.get(f"{api_url(account.authority)}/copilot_internal/v2/token", headers)
    if response.status != 200:
        raise server.error_for(response)
    if not (token := response.text("token")):
        raise server.answer_error("the server returned no token")
    endpoints, refresh_in = response.data.get("endpoints"), response.number("refresh_in")
    api = endpoints.get("api") if isinstance(endpoints, dict) else None
    return replace(
        account,
        access_token=token,
        # By our own clock if possible: the server's may differ.
        expires_at=time.time() + refresh_in + _EXPIRY_MARGIN_S if refresh_in else response.number("expires_at"),
        api_base=api.rstrip("/") if isinstance(api, str) else "",
        plan=response.text("sku"),
    )


class CopilotProvider(AccountProvider):
    """Copilot. `api_base` overrides the address that comes with the token."""

    default_name = PROVIDER
    default_base = API
    default_timeouts = Timeouts.standard()
    expired_statuses = frozenset({401, 403})

    async def renew(self, account: Account) -> Account:
        return await renew(account, self._endpoint.pools)

    def create_call(self, account: Account, request: ModelRequest) -> WireCall:
        last = request.messages[-1] if request.messages else None
        is_users = last is not None and last["role"] == "user" and not is_synthetic(last)
        headers = {
            **EDITOR_HEADERS,
            "Openai-Intent": "conversation-edits",
            "X-Initiator": "user" if is_users else "agent",
            **({"Copilot-Vision-Request": "true"} if has_images(request.messages) else {}),
        }
        endpoint = self.endpoint_of(account, headers)
        if NEEDS_RESPONSES in endpoint.capabilities.get(endpoint.api_base, request.model):
            return ResponsesCall(endpoint, request, self._on_fixup, has_own_limits=True)
        return ChatCall(endpoint, request, self._on_fixup)

    def learn(self, error: ModelCallError, call: WireCall) -> bool:
        """Learn that a model only answers on the Responses wire."""
        if error.status != 400 or "/chat/completions" not in error.detail:
            return False
        endpoint = call.endpoint
        return endpoint.capabilities.learn(endpoint.api_base, error.target.model, NEEDS_RESPONSES)
