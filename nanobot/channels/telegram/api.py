"""The Bot API (core.telegram.org/bots/api): python-telegram-bot over our own connections, with our error types.

Import it in a thread when a bot is started: the SDK is slow to load.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO
from urllib.parse import urlencode

import httpx
from telegram import Bot
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    TelegramError,
)
from telegram.request import BaseRequest, RequestData

from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.telegram.polling import ConflictError, Raw
from nanobot.net.clients import connection_error_reason
from nanobot.net.connection import HttpError, parse_server_address
from nanobot.net.http import HttpPools, proxy_for

API = "https://api.telegram.org"
CONNECT_S = 10.0
ANSWER_S = 20.0
POLL_SLACK_S = 10.0
"""How much longer than the poll itself its response may take before the connection counts as dead."""
_CHUNK = 64 * 1024
_LARGEST_ANSWER = 16 * 1024 * 1024
"""Far above the size of a hundred updates, the most that one response has."""
UPDATES = ["message", "callback_query"]
"""The kinds of updates to receive. Edits are not among them: an edited message is not answered again."""

_FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "*/*"}

# Their failures reach us as exceptions; and httpx would log URLs, which contain the token.
logging.getLogger("telegram").setLevel(logging.CRITICAL)
logging.getLogger("httpx").setLevel(logging.WARNING)


class OutOfReachError(NetworkError):
    """The request was not sent."""


class CutOffError(NetworkError):
    """The connection broke after the request was sent: Telegram may have it."""


class PauseError(TelegramError):
    """Too many requests. Used instead of the SDK's own error, which warns unless an environment variable is set."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Telegram asks for a pause of {seconds:g} s")
        self.seconds = seconds


class PooledRequest(BaseRequest):
    """Sends the SDK's requests over our own connections: one shared TLS context, no proxy for this machine."""

    def __init__(self, pools: HttpPools, base: str, proxy: str | None) -> None:
        self._pools = pools
        self._base = parse_server_address(f"{base}/")
        self._is_direct = proxy_for(base, proxy) is None

    @property
    def read_timeout(self) -> float:
        """The default timeout of a response."""
        return ANSWER_S

    async def initialize(self) -> None:
        """Nothing to open: the pools belong to the caller."""

    async def shutdown(self) -> None:
        """Nothing to close: the pools belong to the caller."""

    async def do_request(
        self,
        url: str,
        method: str,
        request_data: RequestData | None = None,
        read_timeout: object = None,
        *args: object,
        **kwargs: object,
    ) -> tuple[int, bytes]:
        """Send a request; of the SDK's timeouts only `read_timeout` applies. Raises one of the three errors above."""
        status, body = await self._send(url, method, request_data, read_timeout)
        if status == httpx.codes.TOO_MANY_REQUESTS:
            raise PauseError(_pause_s(body))
        return status, body

    async def _send(
        self, url: str, method: str, request_data: RequestData | None, read_timeout: object
    ) -> tuple[int, bytes]:
        timeout_s = read_timeout if isinstance(read_timeout, int | float) else ANSWER_S
        form = request_data.json_parameters if request_data is not None else {}
        files = request_data.multipart_data if request_data is not None else {}
        if self._is_direct and not files:
            return await self._post(url, urlencode(form).encode(), timeout_s)
        try:
            async with self._pools.borrow_client(url) as client:
                limits = httpx.Timeout(ANSWER_S, connect=CONNECT_S, read=timeout_s)
                response = await client.request(method, url, timeout=limits, data=form, files=files)
                return response.status_code, response.content
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
            raise OutOfReachError(connection_error_reason(error)) from error
        except httpx.HTTPError as error:
            raise CutOffError(f"{type(error).__name__}: {connection_error_reason(error)}") from error

    async def _post(self, url: str, form: bytes, timeout_s: float) -> tuple[int, bytes]:
        """A request without files over a direct connection: half the cost of a general client."""
        try:
            connection = await self._pools.connect(self._base, CONNECT_S)
        except HttpError as error:
            raise OutOfReachError(str(error)) from error
        connection.address = parse_server_address(url)  # each method has its own, over the same connections
        try:
            async with asyncio.timeout(timeout_s):
                await connection.post(_FORM, form)
                body = bytearray()
                while chunk := await connection.read():
                    body += chunk
                    if len(body) > _LARGEST_ANSWER:
                        raise CutOffError("the answer is too long")
            return connection.status, bytes(body)
        except HttpError as error:
            raise CutOffError(str(error)) from error
        except TimeoutError as error:
            raise CutOffError(f"no answer within {timeout_s:g} s") from error
        finally:
            connection.address = self._base
            await self._pools.release(connection)


class TelegramBot(Bot):
    """The SDK's bot, but with unparsed updates: one that cannot be parsed must not hide the others."""

    async def updates(self, offset: int | None, wait_s: float) -> list[Raw]:
        """Poll. Raises TelegramError."""
        parameters = {"timeout": int(wait_s), "offset": offset, "allowed_updates": UPDATES}
        # In lower case, which Telegram accepts too: the SDK warns about a method that it wraps itself.
        updates = await self.do_api_request("getupdates", parameters, read_timeout=wait_s + POLL_SLACK_S)
        return [raw for raw in updates if isinstance(raw, dict) and isinstance(raw.get("update_id"), int)]


async def make_bot(token: str, pools: HttpPools, api_base: str | None, proxy: str | None) -> TelegramBot:
    """Create a bot that uses these pools. Raises ChannelSetupError for a proxy that cannot be used."""
    base = (api_base or API).rstrip("/")
    try:
        if proxy_for(base, proxy) is not None:
            async with pools.borrow_client(base):
                pass
    except (ImportError, ValueError) as error:
        hint = "Run `pip install socksio`" if isinstance(error, ImportError) else "Write it as http://host:port"
        raise ChannelSetupError(f"channels.telegram.proxy cannot be used: {error}. {hint}, or remove it.") from error
    request = PooledRequest(pools, base, proxy)
    return TelegramBot(token, f"{base}/bot", f"{base}/file/bot", request=request, get_updates_request=request)


async def download(bot: TelegramBot, pools: HttpPools, file_id: str) -> AsyncIterator[bytes]:
    """Download a file in chunks (core.telegram.org/bots/api#getfile). Raises SendError."""
    try:
        file = await bot.get_file(file_id)
    except TelegramError as error:
        raise error_of(error) from error
    location = file.file_path or ""
    if not location.startswith(("http://", "https://")):  # a path on this machine, from a local Bot API server
        async for chunk in _read(Path(location)):
            yield chunk
        return
    async with pools.borrow_client(location) as client, client.stream("GET", location, timeout=ANSWER_S) as response:
        if response.status_code != httpx.codes.OK:
            raise SendError(f"Telegram did not send the file (HTTP {response.status_code})")
        async for chunk in response.aiter_bytes(_CHUNK):
            yield chunk


async def _read(path: Path) -> AsyncIterator[bytes]:
    file: IO[bytes] = await asyncio.to_thread(path.open, "rb")
    try:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk
    finally:
        file.close()


def error_of(error: TelegramError) -> SendError:
    """The SendError for an error of the SDK."""
    text = error.message
    match error:
        case PauseError(seconds=seconds):
            return RateLimitedError(text, seconds)
        case Conflict():
            return ConflictError(
                "another process polls with this token, and Telegram gives each message to one of them only. "
                "Stop it (a second gateway, another bot program), or give it a token of its own with @BotFather."
            )
        case InvalidToken():
            return NotConnectedError(f"Telegram rejects the token ({text})")  # polling reports it to the owner
        case OutOfReachError():
            return NotConnectedError(f"Telegram cannot be reached: {text}")
        case CutOffError():
            return SendError(f"connection to Telegram lost: {text}", may_have_arrived=True)
        case Forbidden() | BadRequest() | ChatMigrated():
            return UndeliverableError(f"Telegram refused it: {text}")
        case _:
            return SendError(f"Telegram server error: {text}")


def _pause_s(body: bytes) -> float:
    """The pause Telegram asks for, in seconds; NaN if it names none."""
    try:
        return float(json.loads(body)["parameters"]["retry_after"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return float("nan")


def setup_error_of(error: InvalidToken, api_base: str | None) -> ChannelSetupError:
    """The error for a rejected token, which says what the owner has to do."""
    where = f" by {api_base} (channels.telegram.apiBase)" if api_base else ""
    return ChannelSetupError(
        f"The token is refused{where} ({error.message}). Ask @BotFather for the token of your bot (/mybots, API Token) "
        "and set channels.telegram.token."
    )
