"""Connects to the Bot API (core.telegram.org/bots/api) by python-telegram-bot, and converts its errors to ours."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from telegram import Bot
from telegram import error as errors
from telegram.error import TelegramError
from telegram.request import HTTPXRequest

from nanobot.channels import rest
from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
    require_settings,
)
from nanobot.config.channels import TelegramConfig
from nanobot.net.http import KEEP_ALIVE_S, connection_error_reason, proxy_for, ssl_context

log = logging.getLogger(__name__)

API = "https://api.telegram.org"
CONNECT_S = 10.0
ANSWER_S = 20.0
POLL_SLACK_S = 10.0
"""How much longer than the poll itself its response may take before the connection counts as dead."""
_TOKEN = re.compile(r"[A-Za-z0-9:_-]+")

Raw = dict[str, Any]
"""An unparsed update."""

# Its failures reach us as exceptions; and it would log URLs, which contain the token.
logging.getLogger("telegram").setLevel(logging.CRITICAL)


@asynccontextmanager
async def open_bot(config: TelegramConfig) -> AsyncIterator[Bot]:
    """A bot whose token Telegram has accepted.

    Raises ChannelSetupError for a token or proxy that cannot be used, SendError if Telegram is unreachable.
    """
    (token,) = require_settings("telegram", token=config.token)
    if not _TOKEN.fullmatch(token):
        raise ChannelSetupError(
            "channels.telegram.token is not a token. A token looks like 123456:ABC-DEF; copy all of it from @BotFather."
        )
    base = (config.api_base or API).rstrip("/")
    tls = await ssl_context(base)
    try:
        request = HTTPXRequest(
            connect_timeout=CONNECT_S,
            read_timeout=ANSWER_S,
            write_timeout=ANSWER_S,
            media_write_timeout=ANSWER_S,
            proxy=proxy_for(base, config.proxy or None),
            httpx_kwargs={
                "verify": tls,
                "trust_env": False,  # `proxy_for` reads the environment
                "limits": httpx.Limits(keepalive_expiry=KEEP_ALIVE_S),
            },
        )
    except (RuntimeError, ValueError) as error:
        hint = "Run `pip install socksio`" if isinstance(error, RuntimeError) else "Write it as http://host:port"
        raise ChannelSetupError(f"channels.telegram.proxy cannot be used: {error}. {hint}, or remove it.") from error
    bot = Bot(token, f"{base}/bot", f"{base}/file/bot", request=request, get_updates_request=request)
    try:
        try:
            await bot.initialize()
        except TelegramError as error:
            raise connection_error(error, config) from None  # the SDK's text has the token
        yield bot
    finally:
        await bot.shutdown()


async def get_updates(bot: Bot, offset: int | None, wait_s: float) -> list[Raw]:
    """Poll; removes a webhook that prevents it. The updates are unparsed: a bad one must not hide the others.

    Raises TelegramError.
    """
    # Edits are not asked for: an edited message is not answered again.
    parameters = {"timeout": int(wait_s), "offset": offset, "allowed_updates": ["message", "callback_query"]}
    try:
        # In lower case, which Telegram accepts too: the SDK warns about a method that it wraps itself.
        updates = await bot.do_api_request("getupdates", parameters, read_timeout=wait_s + POLL_SLACK_S)
    except errors.Conflict as error:
        if "webhook" not in error.message.lower():
            raise
        log.warning("telegram: a webhook was set for this bot; removed it, since nanobot polls")
        await bot.delete_webhook()
        return []
    known = [raw for raw in updates if isinstance(raw, dict) and isinstance(raw.get("update_id"), int)]
    return [raw for raw in known if raw["update_id"] >= (offset or 0)]


async def download(bot: Bot, file_id: str, proxy: str | None) -> AsyncIterator[bytes]:
    """Download a file in chunks (core.telegram.org/bots/api#getfile). Raises SendError."""
    try:
        file = await bot.get_file(file_id)
    except TelegramError as error:
        raise error_of(error) from error
    location = file.file_path or ""
    if not location.startswith(("http://", "https://")):  # a path on this machine, from a local Bot API server
        yield await asyncio.to_thread(Path(location).read_bytes)
        return
    async for chunk in rest.download("Telegram", location, proxy=proxy):
        yield chunk


def error_of(error: TelegramError) -> SendError:
    text, cause = error.message, error.__cause__
    match error:
        case errors.RetryAfter(retry_after=pause):  # a number, or with PTB_TIMEDELTA in the environment a timedelta
            return RateLimitedError(text, pause.total_seconds() if isinstance(pause, timedelta) else pause)
        case errors.Conflict():
            return SendError(
                "another process polls with this token, and Telegram gives each message to one of them only. "
                "Stop it (a second gateway, another bot program), or give it a token of its own with @BotFather."
            )
        case errors.InvalidToken() | errors.EndPointNotFound():
            return NotConnectedError(f"Telegram rejects the token ({text})")  # polling reports it to the owner
        case errors.Forbidden() | errors.BadRequest() | errors.ChatMigrated():
            return UndeliverableError(f"Telegram refused it: {text}")
        case errors.NetworkError() if isinstance(cause, rest.NOT_SENT):
            return NotConnectedError(f"Telegram cannot be reached: {connection_error_reason(cause)}")
        case errors.NetworkError() if cause is not None and not isinstance(cause, TelegramError):
            reason = f"{type(cause).__name__}: {connection_error_reason(cause)}"
            return SendError(f"connection to Telegram lost: {reason}", may_have_arrived=True)
        case _:
            return SendError(f"Telegram server error: {text}")


def connection_error(error: TelegramError, config: TelegramConfig) -> Exception:
    """The error of the connection, as opposed to one message: for a rejected token it says what the owner has to do."""
    if not isinstance(error, errors.InvalidToken | errors.EndPointNotFound):
        return error_of(error)
    where = f" by {config.api_base} (channels.telegram.apiBase)" if config.api_base else ""
    return ChannelSetupError(
        f"The token is refused{where}. Ask @BotFather for the token of your bot (/mybots, API Token) and set "
        "channels.telegram.token."
    )
