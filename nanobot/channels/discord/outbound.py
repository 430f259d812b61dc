"""Converts Discord's errors to SendErrors, and builds references, buttons and nonces of outgoing messages.

Codes: https://discord.com/developers/docs/topics/opcodes-and-status-codes
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from types import SimpleNamespace

import aiohttp
import discord

from nanobot.bus.events import Button
from nanobot.channels.errors import NotConnectedError, RateLimitedError, SendError, UndeliverableError

_LONGEST_VALUE = 100
_LONGEST_LABEL = 80
_LONGEST_NONCE = 25
_MOST_BUTTONS = 25


async def raise_failures(_: aiohttp.ClientSession, __: SimpleNamespace, request: aiohttp.TraceRequestEndParams) -> None:
    """Raise temporary failures at once: the SDK would retry them by itself for half a minute."""
    response = request.response
    try:
        if response.status == 429:
            raise RateLimitedError("Discord: too many requests", await _pause_s(response))
        if response.status >= 500:
            raise SendError(f"Discord answered {response.status}")
    except SendError:
        response.close()
        raise


async def _pause_s(response: aiohttp.ClientResponse) -> float:
    """The pause Discord asks for: in the body, or in a header from the servers before it."""
    try:
        return float((await response.json(content_type=None))["retry_after"])
    except (ValueError, TypeError, KeyError, aiohttp.ClientError):
        try:
            return float(response.headers.get("Retry-After", ""))
        except ValueError:
            return 5.0


@contextmanager
def as_send_errors() -> Iterator[None]:
    """Convert the exceptions of a request to SendErrors."""
    try:
        yield
    except discord.HTTPException as error:
        text = f"Discord: {error.text or error} ({error.status}, code {error.code})"
        if error.status == 401:  # the gateway connection ends, too, which tells the owner
            raise NotConnectedError(text) from error
        raise UndeliverableError(text) from error
    except aiohttp.ClientConnectorError as error:
        raise NotConnectedError(f"Discord cannot be reached: {error}") from error
    except (aiohttp.ClientError, OSError) as error:
        text = f"connection to Discord lost: {type(error).__name__} {error}"
        raise SendError(text, may_have_arrived=True) from error


def nonce_of(salt: str, chat: int, nonce: str) -> str:
    """A nonce unique among all chats and journals of a bot: Discord compares them all for some minutes."""
    return sha256(f"{salt}:{chat}:{nonce}".encode()).hexdigest()[:_LONGEST_NONCE]


def reference_to(reply_to: str | None, chat: int) -> discord.MessageReference | None:
    """A reference to the message that is replied to; ignored by Discord if that is deleted."""
    if reply_to is None or not reply_to.isdigit():
        return None
    return discord.MessageReference(message_id=int(reply_to), channel_id=chat, fail_if_not_exists=False)


def view_of(buttons: Sequence[Button]) -> discord.ui.View | None:
    """Buttons as components. Each contains its value, so that a press can be read after a restart.

    The label replaces a value that is too long.
    """
    if not buttons:
        return None
    view = discord.ui.View(timeout=None)
    values: set[str] = set()
    for button in buttons[:_MOST_BUTTONS]:
        label = button.label[:_LONGEST_LABEL]
        value = button.value if 0 < len(button.value) <= _LONGEST_VALUE else label
        if value not in values:  # Discord refuses two with the same value
            values.add(value)
            view.add_item(discord.ui.Button(label=label, custom_id=value))
    view.stop()  # presses are handled as events; otherwise the SDK keeps every view
    return view
