"""The Bot API (core.telegram.org/bots/api): python-telegram-bot over our own connections, its errors as ours.

To be imported when a bot is started, in a thread: the SDK takes its time.
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
"""How much later than promised the answer to a poll may come, before the line is taken for dead."""
_CHUNK = 64 * 1024
_LARGEST_ANSWER = 16 * 1024 * 1024
"""A hundred updates, the most that come at once, are far below it."""
UPDATES = ["message", "callback_query"]
"""What is asked for. An edit is not: its message has its answer, or is being answered, and is not asked anew."""

_FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "*/*"}

# All they have to say reaches us as errors; and httpx would write addresses, which hold the token.
logging.getLogger("telegram").setLevel(logging.CRITICAL)
logging.getLogger("httpx").setLevel(logging.WARNING)


class OutOfReachError(NetworkError):
    """The request never left."""


class CutOffError(NetworkError):
    """The line broke with the request on it: Telegram may have it."""


class PauseError(TelegramError):
    """Too much at once. (The SDK's own error for it warns, unless a variable of the process's environment is set.)"""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Telegram asks for a pause of {seconds:g} s")
        self.seconds = seconds


class PooledRequest(BaseRequest):
    """Requests over our own connections: one shared TLS context, no proxy to this machine."""

    def __init__(self, pools: HttpPools, base: str, proxy: str | None) -> None:
        self._pools = pools
        self._base = parse_server_address(f"{base}/")
        self._is_direct = proxy_for(base, proxy) is None

    @property
    def read_timeout(self) -> float:
        """How long an answer may take."""
        return ANSWER_S

    async def initialize(self) -> None:
        """Who made the pools opens and closes them."""

    async def shutdown(self) -> None:
        """Who made the pools opens and closes them."""

    async def do_request(
        self,
        url: str,
        method: str,
        request_data: RequestData | None = None,
        read_timeout: object = None,
        *args: object,
        **kwargs: object,
    ) -> tuple[int, bytes]:
        """Ask. Of the SDK's limits only that of the answer holds. Raises OutOfReachError, CutOffError or PauseError."""
        status, body = await self._answer(url, method, request_data, read_timeout)
        if status == httpx.codes.TOO_MANY_REQUESTS:
            raise PauseError(_pause_s(body))
        return status, body

    async def _answer(
        self, url: str, method: str, request_data: RequestData | None, read_timeout: object
    ) -> tuple[int, bytes]:
        answer_s = read_timeout if isinstance(read_timeout, int | float) else ANSWER_S
        form = request_data.json_parameters if request_data is not None else {}
        files = request_data.multipart_data if request_data is not None else {}
        if self._is_direct and not files:
            return await self._ask(url, urlencode(form).encode(), answer_s)
        try:
            async with self._pools.borrow_client(url) as client:
                limits = httpx.Timeout(ANSWER_S, connect=CONNECT_S, read=answer_s)
                answer = await client.request(method, url, timeout=limits, data=form, files=files)
                return answer.status_code, answer.content
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
            raise OutOfReachError(connection_error_reason(error)) from error
        except httpx.HTTPError as error:
            raise CutOffError(f"{type(error).__name__}: {connection_error_reason(error)}") from error

    async def _ask(self, url: str, form: bytes, answer_s: float) -> tuple[int, bytes]:
        """The plain case, for half of what a general client takes."""
        try:
            connection = await self._pools.connect(self._base, CONNECT_S)
        except HttpError as error:
            raise OutOfReachError(str(error)) from error
        connection.address = parse_server_address(url)  # each method has its own, over the same connections
        try:
            async with asyncio.timeout(answer_s):
                await connection.post(_FORM, form)
                body = bytearray()
                while piece := await connection.read():
                    body += piece
                    if len(body) > _LARGEST_ANSWER:
                        raise CutOffError("the answer is too long")
            return connection.status, bytes(body)
        except HttpError as error:
            raise CutOffError(str(error)) from error
        except TimeoutError as error:
            raise CutOffError(f"no answer within {answer_s:g} s") from error
        finally:
            connection.address = self._base
            await self._pools.release(connection)


class TelegramBot(Bot):
    """The SDK's bot, which gives updates as they came: one that cannot be read must not hide the others."""

    async def updates(self, offset: int | None, wait_s: float) -> list[Raw]:
        """Poll. Raises TelegramError."""
        told = {"timeout": int(wait_s), "offset": offset, "allowed_updates": UPDATES}
        # In lower case, which Telegram takes too: for a method that it wraps itself the SDK warns.
        found = await self.do_api_request("getupdates", told, read_timeout=wait_s + POLL_SLACK_S)
        return [raw for raw in found if isinstance(raw, dict) and isinstance(raw.get("update_id"), int)]


async def make_bot(token: str, pools: HttpPools, api_base: str | None, proxy: str | None) -> TelegramBot:
    """A bot that speaks over these pools. Raises ChannelSetupError for a proxy that cannot be used."""
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
    """A file somebody sent, chunk by chunk (core.telegram.org/bots/api#getfile). Raises SendError."""
    try:
        file = await bot.get_file(file_id)
    except TelegramError as error:
        raise error_of(error) from error
    where = file.file_path or ""
    if not where.startswith(("http://", "https://")):  # a Bot API server on this machine says where it lies
        async for chunk in _read(Path(where)):
            yield chunk
        return
    async with pools.borrow_client(where) as client, client.stream("GET", where, timeout=ANSWER_S) as answer:
        if answer.status_code != httpx.codes.OK:
            raise SendError(f"Telegram did not send the file (HTTP {answer.status_code})")
        async for chunk in answer.aiter_bytes(_CHUNK):
            yield chunk


async def _read(path: Path) -> AsyncIterator[bytes]:
    file: IO[bytes] = await asyncio.to_thread(path.open, "rb")
    try:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk
    finally:
        file.close()


def error_of(error: TelegramError) -> SendError:
    """What the SDK's error means for who sends."""
    said = error.message
    match error:
        case PauseError(seconds=seconds):
            return RateLimitedError(said, seconds)
        case Conflict():
            return ConflictError(
                "another process polls with this token, and Telegram gives each message to one of them only. "
                "Stop it (a second gateway, another bot program), or give it a token of its own with @BotFather."
            )
        case InvalidToken():
            return NotConnectedError(f"Telegram rejects the token ({said})")  # the poll says it to the owner
        case OutOfReachError():
            return NotConnectedError(f"Telegram cannot be reached: {said}")
        case CutOffError():
            return SendError(f"connection to Telegram lost: {said}", may_have_arrived=True)
        case Forbidden() | BadRequest() | ChatMigrated():
            return UndeliverableError(f"Telegram refused it: {said}")
        case _:
            return SendError(f"Telegram server error: {said}")


def _pause_s(body: bytes) -> float:
    """How long Telegram wants to be left alone; not a number where it does not say."""
    try:
        return float(json.loads(body)["parameters"]["retry_after"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return float("nan")


def setup_error_of(error: InvalidToken, api_base: str | None) -> ChannelSetupError:
    """What the owner is to do about a token that is refused."""
    where = f" by {api_base} (channels.telegram.apiBase)" if api_base else ""
    return ChannelSetupError(
        f"The token is refused{where} ({error.message}). Ask @BotFather for the token of your bot (/mybots, API Token) "
        "and set channels.telegram.token."
    )
