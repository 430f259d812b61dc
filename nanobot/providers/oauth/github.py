"""A GitHub account with Copilot: how it is logged in to, and how its short tokens are got.

Sources: GitHub's page on the device flow (docs.github.com, "Authorizing OAuth apps"); of Copilot, which has no public
reference, what editors send and servers were seen to want: the client id of the editors and the token address
`copilot_internal/v2/token` (litellm and zed-industries/zed, both public), the fields `token`, `expires_at`,
`refresh_in` and `endpoints.api`, and "missing Editor-Version header for IDE auth" where an editor does not say which it
is (BerriAI/litellm issue 13256 and many more). Addresses of GitHub Enterprise: docs.github.com, "Network details for
GHE.com" (`api.NAME.ghe.com`) and its REST reference for a server of one's own (`HOST/api/v3`).
"""

import asyncio
import time
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from nanobot.providers.errors import ModelCallError
from nanobot.providers.oauth.accounts import Account
from nanobot.providers.oauth.authority import Asker, Reply
from nanobot.providers.oauth.device_flow import Sleep, begin, token_for
from nanobot.providers.oauth.errors import AuthorityAnswerError, LoginFailedError, LoginNeededError
from nanobot.providers.oauth.screen import Screen
from nanobot.utils.http import HttpPools

PROVIDER = "github_copilot"
HOST = "https://github.com"
EDITOR_HEADERS = {
    "Editor-Version": "vscode/1.107.0",
    "Editor-Plugin-Version": "copilot-chat/0.35.0",
    "Copilot-Integration-Id": "vscode-chat",
}
"""Copilot serves editors only and wants to know which; it takes no name it does not know."""
_SPARE_S = 60.0
"""A token lives a little longer than `refresh_in`, after which it should be renewed."""


@dataclass(frozen=True, slots=True)
class GitHubAuthority:
    """Who is asked for a GitHub account, and as whom."""

    host: str = HOST
    client_id: str = "Iv1.b507a08c87ecfe98"
    scope: str = "read:user"

    @classmethod
    def at(cls, host: str) -> "GitHubAuthority":
        """GitHub at this address: a company's, or the public one without an address."""
        return cls(host.rstrip("/") or HOST)

    @property
    def api(self) -> str:
        """Where its API is."""
        parts = urlsplit(self.host)
        name = parts.hostname or ""
        if name == "github.com" or name.endswith(".ghe.com"):
            return f"{parts.scheme}://api.{name}"
        return f"{self.host}/api/v3"

    @property
    def device_url(self) -> str:
        """Where a code is asked for."""
        return f"{self.host}/login/device/code"

    @property
    def token_url(self) -> str:
        """Where is asked whether it was typed."""
        return f"{self.host}/login/oauth/access_token"

    @property
    def copilot_url(self) -> str:
        """Where a token for Copilot is got."""
        return f"{self.api}/copilot_internal/v2/token"


async def log_in(authority: GitHubAuthority, pools: HttpPools, screen: Screen, sleep: Sleep = asyncio.sleep) -> Account:
    """Log in by a code that is typed on a page of GitHub. Raises LoginFailedError, or a ModelCallError."""
    asker = Asker(pools, PROVIDER, authority.host)
    code = await begin(asker, authority.device_url, {"client_id": authority.client_id, "scope": authority.scope})
    screen.show(f"Open {code.verification_uri} and type this code:", code.user_code)
    screen.open(code.verification_uri)
    grant = await token_for(asker, authority.token_url, authority.client_id, code, sleep)
    account = Account(PROVIDER, authority.host, grant)
    try:
        account = await renew(account, pools)
    except LoginNeededError as refused:
        raise LoginFailedError(f"This GitHub account has no Copilot here: {refused.detail}") from None
    return replace(account, name=await _name_of(asker, authority, grant))


async def renew(account: Account, pools: HttpPools) -> Account:
    """The account with a new token for Copilot. Raises as AccountTokens wants it."""
    authority = GitHubAuthority(account.authority)
    asker = Asker(pools, PROVIDER, account.authority)
    headers = {"Authorization": f"token {account.grant}", **EDITOR_HEADERS}
    reply = await asker.get(authority.copilot_url, headers, account.secrets)
    if reply.status != 200:
        raise asker.trouble(reply, account.secrets)
    token = reply.word("token")
    if not token:
        raise asker.error(AuthorityAnswerError, "the authority gave no token", account.secrets)
    endpoints = reply.data.get("endpoints")
    api = endpoints.get("api") if isinstance(endpoints, dict) else None
    return replace(
        account,
        access_token=token,
        expires_at=_end_of(reply),
        api_base=api.rstrip("/") if isinstance(api, str) else "",
        plan=reply.word("sku"),
    )


def _end_of(reply: Reply) -> float | None:
    """By our own clock where that can be had: theirs may be another."""
    refresh_in = reply.number("refresh_in")
    return time.time() + refresh_in + _SPARE_S if refresh_in else reply.number("expires_at")


async def _name_of(asker: Asker, authority: GitHubAuthority, grant: str) -> str:
    """Who logged in. Nice to know, nothing more."""
    try:
        reply = await asker.get(f"{authority.api}/user", {"Authorization": f"token {grant}"}, [grant])
    except ModelCallError:
        return ""
    return reply.word("login")
