"""A ChatGPT account: how it is logged in to, in a browser, and how its token is renewed.

Sources: the published source of OpenAI's own client (github.com/openai/codex, codex-rs/login: server.rs for the
addresses, the client id, the scopes, the two ports that are registered for redirects and the extra words of the
question; token_data.rs for the claims), RFC 6749 (4.1 and 6), RFC 7636 and RFC 8252. The client id is the public one of
that client: OpenAI registers no others for these accounts.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode

from nanobot.providers.oauth.accounts import Account
from nanobot.providers.oauth.authority import Asker, Reply
from nanobot.providers.oauth.callback import Question, StrangeAnswerError, waiting_for
from nanobot.providers.oauth.claims import claims_of, inner, word
from nanobot.providers.oauth.errors import AuthorityAnswerError, LoginFailedError
from nanobot.providers.oauth.pkce import Pkce, new_state
from nanobot.providers.oauth.screen import Screen, first_of
from nanobot.utils.http import HttpPools

PROVIDER = "openai_codex"
ISSUER = "https://auth.openai.com"
CLIENT_ID = "app_EMoamEEZ73f0CkXaXp7hrann"
_AUTH_CLAIMS = "https://api.openai.com/auth"
_PROFILE_CLAIMS = "https://api.openai.com/profile"


@dataclass(frozen=True, slots=True)
class OpenAIAuthority:
    """Who is asked for a ChatGPT account, and as whom."""

    issuer: str = ISSUER
    client_id: str = CLIENT_ID
    scope: str = "openid profile email offline_access"
    ports: tuple[int, ...] = (1455, 1457)
    """Where a browser may be sent back to. These are registered with OpenAI; others take any port (RFC 8252, 7.3)."""
    redirect_path: str = "/auth/callback"
    patience_s: float = 600.0
    """How long a person may take."""

    @classmethod
    def at(cls, issuer: str) -> "OpenAIAuthority":
        """The authority at this address; OpenAI's own without one."""
        issuer = issuer.rstrip("/")
        return cls() if not issuer or issuer == ISSUER else cls(issuer, ports=(1455, 1457, 0))

    @property
    def token_url(self) -> str:
        """Where codes and refresh tokens are redeemed."""
        return f"{self.issuer}/oauth/token"

    def question(self, redirect_uri: str, pkce: Pkce, state: str) -> str:
        """The address a person opens to log in."""
        words = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": redirect_uri,
            "scope": self.scope,
            "code_challenge": pkce.challenge,
            "code_challenge_method": "S256",
            "state": state,
            "id_token_add_organizations": "true",  # so that the token names the account
            "codex_cli_simplified_flow": "true",
            "originator": "nanobot",
        }
        return f"{self.issuer}/oauth/authorize?{urlencode(words, quote_via=quote)}"


async def log_in(authority: OpenAIAuthority, pools: HttpPools, screen: Screen) -> Account:
    """Log in with a browser here, or with one elsewhere whose last address is pasted. Raises LoginFailedError."""
    pkce, state = Pkce.new(), new_state()
    question = Question(authority.redirect_path, state)
    async with waiting_for(question, authority.ports) as callback:
        port = callback.port if callback is not None else authority.ports[0]
        redirect_uri = f"http://localhost:{port}{authority.redirect_path}"
        url = authority.question(redirect_uri, pkce, state)
        screen.show(
            "Log in with your ChatGPT account at this address:",
            url,
            "No page of nanobot's at the end? Paste the address your browser ended at here, and press Enter.",
        )
        screen.open(url)
        ways: list[Callable[[], Awaitable[str]]] = [lambda: _pasted(question, screen)]
        if callback is not None:
            ways.insert(0, callback.code)
        code = await first_of(ways, authority.patience_s)
    return await redeem(authority, pools, code, pkce, redirect_uri)


async def _pasted(question: Question, screen: Screen) -> str:
    while True:
        text = await screen.pasted()
        try:
            if text and (code := question.code_typed(text)):
                return code
        except StrangeAnswerError as error:
            screen.say(f"That is not the answer to this login. {error} Paste the whole address.")


async def redeem(authority: OpenAIAuthority, pools: HttpPools, code: str, pkce: Pkce, redirect_uri: str) -> Account:
    """An account for a code. Raises LoginFailedError, or a ModelCallError where nobody answers."""
    form = {
        "grant_type": "authorization_code",
        "client_id": authority.client_id,
        "code": code,
        "code_verifier": pkce.verifier,
        "redirect_uri": redirect_uri,
    }
    asker = Asker(pools, PROVIDER, authority.issuer)
    secrets = [code, pkce.verifier]
    reply = await asker.post(authority.token_url, form, secrets)
    if reply.status in (400, 401, 403):
        error = asker.trouble(reply, secrets)
        raise LoginFailedError(f"The login was not completed: {error.detail or 'refused'}. Begin it again.")
    if reply.status != 200:
        raise asker.trouble(reply, secrets)
    account = _account_of(reply, Account(PROVIDER, authority.issuer, grant=""))
    if not account.grant or not account.access_token:
        raise asker.error(AuthorityAnswerError, "the authority gave no tokens")
    if not account.account_id:
        raise LoginFailedError(
            "This login has no ChatGPT account that may use Codex. Log in with another one, or use a key of the API."
        )
    return account


async def renew(account: Account, pools: HttpPools, client_id: str = CLIENT_ID) -> Account:
    """The account with a new token, and the new refresh token where one came. Raises as AccountTokens wants it."""
    form = {"grant_type": "refresh_token", "client_id": client_id, "refresh_token": account.grant}
    asker = Asker(pools, PROVIDER, account.authority)
    authority = OpenAIAuthority(account.authority, client_id)
    reply = await asker.post(authority.token_url, form, account.secrets)
    if reply.status == 200:
        fresh = _account_of(reply, account)
        if fresh.access_token == account.access_token:
            raise asker.error(AuthorityAnswerError, "the authority gave no new token", account.secrets)
        return fresh
    if reply.status in (400, 401) and not reply.error:  # a proxy's page, not the authority's word
        raise asker.error(AuthorityAnswerError, reply.reason, account.secrets)
    raise asker.trouble(reply, account.secrets)


def _account_of(reply: Reply, before: Account) -> Account:
    """What a reply brings; what it leaves out stays as it was."""
    access_token = reply.word("access_token") or before.access_token
    access, identity = claims_of(access_token), claims_of(reply.word("id_token"))
    auth = inner(identity, _AUTH_CLAIMS) or inner(access, _AUTH_CLAIMS)
    profile = inner(identity, _PROFILE_CLAIMS) or inner(access, _PROFILE_CLAIMS)
    lasts_s, ends = reply.number("expires_in"), access.get("exp")
    expires_at = time.time() + lasts_s if lasts_s else float(ends) if isinstance(ends, int | float) else None
    return replace(
        before,
        grant=reply.word("refresh_token") or before.grant,
        access_token=access_token,
        expires_at=expires_at,
        name=word(identity, "email") or word(profile, "email") or before.name,
        plan=word(auth, "chatgpt_plan_type") or before.plan,
        account_id=word(auth, "chatgpt_account_id") or before.account_id,
    )
