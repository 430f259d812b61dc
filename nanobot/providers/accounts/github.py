"""A GitHub account with Copilot: login by device code, and its short-lived tokens.

Sources: GitHub's page on the device flow (docs.github.com, "Authorizing OAuth apps"). Copilot has no public reference,
so the rest is what editors send and servers were observed to require: the client id of the editors and the token
address `copilot_internal/v2/token` (litellm and zed-industries/zed, both public), the fields `token`, `expires_at`,
`refresh_in` and `endpoints.api`, and "missing Editor-Version header for IDE auth" if an editor does not identify itself
(BerriAI/litellm issue 13256 and many more). Addresses of GitHub Enterprise: docs.github.com, "Network details for
GHE.com" (`api.NAME.ghe.com`) and its REST reference for a self-hosted server (`HOST/api/v3`).
"""

import asyncio
import time
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from nanobot.net.pools import HttpPools
from nanobot.providers.accounts.device_flow import Sleep, poll_token, request_code
from nanobot.providers.accounts.errors import AuthorityAnswerError, LoginFailedError, LoginNeededError
from nanobot.providers.accounts.login_screen import LoginScreen
from nanobot.providers.accounts.oauth_server import OAuthHttpClient, OAuthResponse
from nanobot.providers.accounts.store import Account
from nanobot.providers.errors import ModelCallError

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


@dataclass(frozen=True, slots=True)
class GitHubAuthority:
    """A GitHub server, and our client registration there."""

    host: str = HOST
    client_id: str = "Iv1.b507a08c87ecfe98"
    scope: str = "read:user"

    @classmethod
    def at(cls, host: str) -> "GitHubAuthority":
        """The server at this address; public GitHub if it is empty."""
        return cls(host.rstrip("/") or HOST)

    @property
    def api(self) -> str:
        parts = urlsplit(self.host)
        name = parts.hostname or ""
        if name == "github.com" or name.endswith(".ghe.com"):
            return f"{parts.scheme}://api.{name}"
        return f"{self.host}/api/v3"

    @property
    def device_url(self) -> str:
        return f"{self.host}/login/device/code"

    @property
    def token_url(self) -> str:
        return f"{self.host}/login/oauth/access_token"

    @property
    def copilot_url(self) -> str:
        return f"{self.api}/copilot_internal/v2/token"


async def log_in(
    authority: GitHubAuthority, pools: HttpPools, screen: LoginScreen, sleep: Sleep = asyncio.sleep
) -> Account:
    """Log in with a code typed on a GitHub page. Raises LoginFailedError, or a ModelCallError."""
    client = OAuthHttpClient(pools, PROVIDER, authority.host)
    code = await request_code(
        client, authority.device_url, {"client_id": authority.client_id, "scope": authority.scope}
    )
    screen.show(f"Open {code.verification_uri} and type this code:", code.user_code)
    screen.open(code.verification_uri)
    grant = await poll_token(client, authority.token_url, authority.client_id, code, sleep)
    account = Account(PROVIDER, authority.host, grant)
    try:
        account = await renew(account, pools)
    except LoginNeededError as error:
        raise LoginFailedError(f"This GitHub account has no Copilot here: {error.detail}") from None
    return replace(account, name=await _name_of(client, authority, grant))


async def renew(account: Account, pools: HttpPools) -> Account:
    """The account with a new Copilot token. Raises what `tokens.Renew` says."""
    authority = GitHubAuthority(account.authority)
    client = OAuthHttpClient(pools, PROVIDER, account.authority)
    headers = {"Authorization": f"token {account.grant}", **EDITOR_HEADERS}
    response = await client.get(authority.copilot_url, headers, account.secrets)
    if response.status != 200:
        raise client.error_for(response, account.secrets)
    token = response.text("token")
    if not token:
        raise client.error(AuthorityAnswerError, "the server returned no token", account.secrets)
    endpoints = response.data.get("endpoints")
    api = endpoints.get("api") if isinstance(endpoints, dict) else None
    return replace(
        account,
        access_token=token,
        expires_at=_expiry(response),
        api_base=api.rstrip("/") if isinstance(api, str) else "",
        plan=response.text("sku"),
    )


def _expiry(response: OAuthResponse) -> float | None:
    """Computed with our own clock if possible: the server's may differ."""
    refresh_in = response.number("refresh_in")
    return time.time() + refresh_in + _EXPIRY_MARGIN_S if refresh_in else response.number("expires_at")


async def _name_of(client: OAuthHttpClient, authority: GitHubAuthority, grant: str) -> str:
    """The user's login name, for display only."""
    try:
        response = await client.get(f"{authority.api}/user", {"Authorization": f"token {grant}"}, [grant])
    except ModelCallError:
        return ""
    return response.text("login")
