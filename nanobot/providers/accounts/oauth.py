"""OAuth in a terminal: requests to sign-in servers, the device flow (RFC 8628) and the browser's callback (RFC 8252).

What is secret here is learned before it is sent, so that no text shows it.
"""

import asyncio
import html
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qs, urlencode, urlsplit

from nanobot.net.http import is_loopback
from nanobot.net.pools import HttpPools
from nanobot.providers.accounts.store import LoginFailedError, LoginNeededError
from nanobot.providers.endpoint import Endpoint, Timeouts
from nanobot.providers.error_patterns import retry_after_s
from nanobot.providers.errors import (
    ConnectionFailedError,
    MalformedResponseError,
    ModelCallError,
    ModelOverloadedError,
    ProviderTimeoutError,
    RateLimitedError,
    kind_of_status,
)
from nanobot.security.secrets import learn_secrets

Sleep = Callable[[float], Awaitable[None]]


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
    """A response of an OAuth server."""

    status: int
    data: dict[str, Any]
    retry_after_s: float | None = None

    def text(self, name: str) -> str:
        """A string field; empty if missing."""
        value = self.data.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> float | None:
        """A numeric field."""
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


_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_SLOW_DOWN_S = 5.0
"""Added to the interval when the server says slow_down (RFC 8628, 3.5)."""
_DEVICE_ERRORS = {
    "access_denied": "The login was refused on the page.",
    "expired_token": "The code expired before it was typed.",
}


async def device_login(
    server: SignInServer,
    screen: LoginScreen,
    device_url: str,
    token_url: str,
    form: Mapping[str, str],
    sleep: Sleep = asyncio.sleep,
) -> str:
    """Show a short code, which the user types on a page, poll until that is done, and return the token.

    `form` has client id and scope. Raises LoginFailedError if it was denied or has expired, or a ModelCallError. The
    addresses and error codes are on GitHub's page (docs.github.com, "Authorizing OAuth apps", device flow).
    """
    started = await server.post(device_url, form)
    device_code, user_code = started.text("device_code"), started.text("user_code")
    if started.status != 200 or not (device_code and user_code):
        raise LoginFailedError(f"The login at {device_url} could not be started: {started.reason}.")
    learn_secrets({device_code: "a login"})
    page = started.text("verification_uri")
    screen.show(f"Open {page} and type this code:", user_code)
    screen.open(page)
    poll = {"client_id": form["client_id"], "device_code": device_code, "grant_type": _DEVICE_GRANT}
    interval_s = started.number("interval")
    interval_s = 5.0 if interval_s is None else interval_s
    deadline = time.monotonic() + (started.number("expires_in") or 900.0)
    failure = _DEVICE_ERRORS["expired_token"]
    while time.monotonic() < deadline:
        await sleep(interval_s)
        try:
            response = await server.post(token_url, poll)
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


_MAX_REQUEST_BYTES = 32 * 1024
_READ_S = 10.0
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>nanobot</title>
<body style="font-family: system-ui; margin: 15vh auto; max-width: 32em"><h1>nanobot</h1><p>{text}</p></body></html>"""


class UnexpectedCallbackError(ValueError):
    """A callback that does not match the login in progress."""


def code_in_query(query: str, state: str) -> str:
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
    """The code in pasted text: an address, its query, or just the code. Raises as `code_in_query` does."""
    text = text.strip()
    if "=" in text:
        return code_in_query(text.partition("?")[2] or text, state)
    if "://" in text or not text.isascii() or any(mark in text for mark in "?# "):  # an address, or a sentence
        raise UnexpectedCallbackError("It contains no code.")
    return text


@asynccontextmanager
async def callback_server(
    path: str, state: str, ports: Sequence[int], code: "asyncio.Future[str]"
) -> AsyncIterator[int | None]:
    """A web server for one login: the browser returns to this machine with the OAuth server's answer, which becomes the
    result of `code`. Yields its port; None if none of them is free, so that the user must paste the address.

    RFC 8252, 7.3: it listens on the loopback address only, while a login is in progress. A request with a wrong state
    is rejected, and the server keeps waiting for the right one.
    """

    def answer(first_line: str) -> tuple[str, str]:
        """Status and page text for one request."""
        method, target, *_ = [*first_line.split(" "), "", ""]
        if method != "GET" or urlsplit(target).path != path:
            return "404 Not Found", "There is nothing here."
        text = "Received. You may close this page and go back to the terminal."
        try:
            result = code_in_query(urlsplit(target).query, state)
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
