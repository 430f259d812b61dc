"""OpenAI models through a ChatGPT account: login in a browser, renewal of its token, and the provider, which speaks the
Responses wire at the address that Codex uses.

Sources: the published source of OpenAI's own client (github.com/openai/codex, codex-rs/login: server.rs for the
addresses, the client id, the scopes, the two registered redirect ports and the extra request parameters; token_data.rs
for the claims), RFC 6749 (4.1 and 6), RFC 7636 and RFC 8252. The client id is the public one of that client: OpenAI
registers no others for these accounts. Address and headers of the backend: codex-rs/codex-api; `originator` carries our
own name.
"""

import asyncio
import base64
import hashlib
import html
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from nanobot.net.pools import HttpPools
from nanobot.providers.accounts.provider import AccountProvider, LoginScreen, OAuthResponse, SignInServer
from nanobot.providers.accounts.store import Account, LoginFailedError
from nanobot.providers.base import ModelRequest, call_context
from nanobot.providers.endpoint import Timeouts
from nanobot.providers.wire.responses import ResponsesCall, conversation_key
from nanobot.security.secrets import learn_secrets

BACKEND = "https://chatgpt.com/backend-api/codex"
PROVIDER = "openai_codex"
ISSUER = "https://auth.openai.com"
CLIENT_ID = "app_EMoamEEZ73f0CkXaXp7hrann"
_REDIRECT_PATH = "/auth/callback"
_AUTH_CLAIMS = "https://api.openai.com/auth"
_PROFILE_CLAIMS = "https://api.openai.com/profile"
_MAX_REQUEST_BYTES = 32 * 1024
_READ_S = 10.0
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>nanobot</title>
<body style="font-family: system-ui; margin: 15vh auto; max-width: 32em"><h1>nanobot</h1><p>{text}</p></body></html>"""


def redirect_ports(issuer: str) -> tuple[int, ...]:
    """The ports for the callback: the two that OpenAI has registered. Other servers accept any (RFC 8252, 7.3)."""
    return (1455, 1457) if issuer == ISSUER else (1455, 1457, 0)


def _authorization_url(issuer: str, redirect_uri: str, verifier: str, state: str) -> str:
    """The URL that the user opens to log in. It holds a hash of the verifier (RFC 7636, method S256)."""
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    params = {
        "response_type": "code",
        "client_id": CLIENT_ID,
        "redirect_uri": redirect_uri,
        "scope": "openid profile email offline_access",
        "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii"),
        "code_challenge_method": "S256",
        "state": state,
        "id_token_add_organizations": "true",  # so that the token names the account
        "codex_cli_simplified_flow": "true",
        "originator": "nanobot",
    }
    return f"{issuer}/oauth/authorize?{urlencode(params, quote_via=quote)}"


class UnexpectedCallbackError(ValueError):
    """A callback that does not match the login in progress."""


def _code_in_query(query: str, state: str) -> str:
    """The code in the query of the address that the browser was sent to.

    Raises UnexpectedCallbackError if it belongs to another login, or LoginFailedError if login was denied.
    """
    params = {name: values[0] for name, values in parse_qs(query).items()}
    if params.get("state") != state:
        raise UnexpectedCallbackError("Its state does not match.")
    if "error" in params:
        reason = params.get("error_description") or params["error"]
        raise LoginFailedError(f"The login was refused: {' '.join(reason.split())[:300]}. Try again.")
    if not params.get("code"):
        raise UnexpectedCallbackError("It contains no code.")
    return params["code"]


def code_in_pasted(text: str, state: str) -> str:
    """The code in pasted text: an address, its query, or just the code. Raises as `_code_in_query` does."""
    text = text.strip()
    if "=" in text:
        return _code_in_query(text.partition("?")[2] or text, state)
    if "://" in text or not text.isascii() or any(mark in text for mark in "?# "):  # an address, or a sentence
        raise UnexpectedCallbackError("It contains no code.")
    return text


@asynccontextmanager
async def _callback_server(state: str, ports: Sequence[int], code: "asyncio.Future[str]") -> AsyncIterator[int | None]:
    """A web server for one login: the browser returns to this machine with the OAuth server's answer, which becomes the
    result of `code`. Yields its port; None if none of them is free, so that the user must paste the address.

    RFC 8252, 7.3: it listens on the loopback address only, while a login is in progress. A request with a wrong state
    is rejected, and the server keeps waiting for the right one.
    """

    def answer(first_line: str) -> tuple[str, str]:
        """Status and page text for one request."""
        method, target, *_ = [*first_line.split(" "), "", ""]
        if method != "GET" or urlsplit(target).path != _REDIRECT_PATH:
            return "404 Not Found", "There is nothing here."
        text = "Received. You may close this page and go back to the terminal."
        try:
            result = _code_in_query(urlsplit(target).query, state)
            if not code.done():
                code.set_result(result)
        except UnexpectedCallbackError:
            return "400 Bad Request", "This page belongs to no login in progress. Start again in the terminal."
        except LoginFailedError as error:
            text = str(error)
            if not code.done():
                code.set_exception(error)
        return "200 OK", text

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, text = answer(head.split(b"\r\n", 1)[0].decode("latin-1"))
            body = _PAGE.format(text=html.escape(text)).encode()
            lines = [f"HTTP/1.1 {status}", "Content-Type: text/html; charset=utf-8", f"Content-Length: {len(body)}"]
            lines += ["Cache-Control: no-store", "Referrer-Policy: no-referrer", "Connection: close"]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError):
            pass  # not a valid request; wait for the next one
        finally:
            writer.close()

    for port in ports:
        with suppress(OSError):
            server = await asyncio.start_server(handle, "127.0.0.1", port, limit=_MAX_REQUEST_BYTES)
            break
    else:
        yield None
        return
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def log_in(
    issuer: str, pools: HttpPools, screen: LoginScreen, *, ports: Sequence[int] | None = None, timeout_s: float = 600.0
) -> Account:
    """Log in with a local browser, or a remote one whose final address the user pastes. Raises LoginFailedError.

    `issuer`: the OAuth server; OpenAI's own if it is empty. `timeout_s`: how long the user has.
    """
    issuer = issuer.rstrip("/") or ISSUER
    ports = redirect_ports(issuer) if ports is None else ports
    verifier, state = secrets.token_urlsafe(64), secrets.token_urlsafe(32)
    returned: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with _callback_server(state, ports, returned) as port:
        redirect_uri = f"http://localhost:{port or ports[0]}{_REDIRECT_PATH}"
        url = _authorization_url(issuer, redirect_uri, verifier, state)
        screen.show(
            "Log in with your ChatGPT account at this address:",
            url,
            "If the browser shows no nanobot page at the end, paste its last address here and press Enter.",
        )
        screen.open(url)
        pasted = asyncio.create_task(_read_pasted(state, screen))
        try:
            done, _ = await asyncio.wait((returned, pasted), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise LoginFailedError(f"No login within {round(timeout_s / 60) or 1} minutes. Run the command again.")
            code = (returned if returned in done else pasted).result()
        finally:
            pasted.cancel()
            await asyncio.gather(pasted, return_exceptions=True)
    return await _exchange_code(issuer, pools, code, verifier, redirect_uri)


async def _read_pasted(state: str, screen: LoginScreen) -> str:
    while True:
        text = await screen.read_line()
        try:
            if text and (code := code_in_pasted(text, state)):
                return code
        except UnexpectedCallbackError as error:
            screen.say(f"That address does not belong to this login. {error} Paste the whole address.")


async def _exchange_code(issuer: str, pools: HttpPools, code: str, verifier: str, redirect_uri: str) -> Account:
    """Exchange the code for an account. Raises LoginFailedError, or a ModelCallError if the server does not respond."""
    form = {
        "grant_type": "authorization_code",
        "client_id": CLIENT_ID,
        "code": code,
        "code_verifier": verifier,
        "redirect_uri": redirect_uri,
    }
    learn_secrets({code: "a login", verifier: "a login"})
    server = SignInServer(pools, PROVIDER, issuer)
    response = await server.post(f"{issuer}/oauth/token", form)
    if response.status != 200:
        error = server.error_for(response)
        if response.status in (400, 401, 403):
            raise LoginFailedError(f"The login was not completed: {error.detail or 'refused'}. Start it again.")
        raise error
    account = _parse_account(response, Account(PROVIDER, issuer, grant=""))
    if not account.grant or not account.access_token:
        raise server.answer_error("the server returned no tokens")
    if not account.account_id:
        raise LoginFailedError(
            "This login has no ChatGPT account that may use Codex. Log in with another one, or use an API key."
        )
    return account


async def renew(account: Account, pools: HttpPools) -> Account:
    """The account with a new token, and a new refresh token if the server sent one. Raises as `AccountTokens` says."""
    form = {"grant_type": "refresh_token", "client_id": CLIENT_ID, "refresh_token": account.grant}
    server = SignInServer(pools, PROVIDER, account.authority)
    response = await server.post(f"{account.authority}/oauth/token", form)
    if response.status == 200:
        renewed = _parse_account(response, account)
        if renewed.access_token == account.access_token:
            raise server.answer_error("the server returned no new token")
        return renewed
    if response.status in (400, 401) and not response.error:  # a proxy's error page, not the server's
        raise server.answer_error(response.reason)
    raise server.error_for(response)


def _parse_account(response: OAuthResponse, previous: Account) -> Account:
    """The account with the fields of the response; missing fields keep their value."""
    access_token = response.text("access_token") or previous.access_token
    tokens = _claims_of(response.text("id_token")), _claims_of(access_token)

    def claim(name: str, group: str = "") -> str:
        """A string claim of either token; empty if missing."""
        holders = [claims.get(group) if group else claims for claims in tokens]
        values = [holder.get(name) for holder in holders if isinstance(holder, dict)]
        return next((value for value in values if isinstance(value, str)), "")

    lifetime_s, exp = response.number("expires_in"), tokens[1].get("exp")
    expires_at = time.time() + lifetime_s if lifetime_s else float(exp) if isinstance(exp, int | float) else None
    return replace(
        previous,
        grant=response.text("refresh_token") or previous.grant,
        access_token=access_token,
        expires_at=expires_at,
        name=claim("email") or claim("email", _PROFILE_CLAIMS) or previous.name,
        plan=claim("chatgpt_plan_type", _AUTH_CLAIMS) or previous.plan,
        account_id=claim("chatgpt_account_id", _AUTH_CLAIMS) or previous.account_id,
    )


def _claims_of(token: str) -> dict[str, Any]:
    """The claims of a JWT (RFC 7519); empty if it is not one. Never raises.

    They are not verified: the token came from its issuer over TLS, which alone relies on it.
    """
    payload = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


class OpenAICodexProvider(AccountProvider):
    """The ChatGPT backend. It sets the length and temperature of an answer itself and rejects both parameters."""

    default_name = PROVIDER
    default_base = BACKEND
    default_timeouts = Timeouts.reasoning()

    async def renew(self, account: Account) -> Account:
        return await renew(account, self._endpoint.pools)

    def create_call(self, account: Account, request: ModelRequest) -> ResponsesCall:
        headers = {
            "chatgpt-account-id": account.account_id,
            "originator": "nanobot",
            "OpenAI-Beta": "responses=experimental",
        }
        if session_key := call_context().session_key:
            headers["session_id"] = conversation_key(session_key)
        endpoint = self.endpoint_of(account, headers)
        return ResponsesCall(endpoint, request, self._on_fixup, has_own_limits=True)
