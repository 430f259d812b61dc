"""What Discord says to a request, as errors that say what to do; and the few shapes a message out takes.

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


async def give_back(_: aiohttp.ClientSession, __: SimpleNamespace, asked: aiohttp.TraceRequestEndParams) -> None:
    """What may pass is raised as soon as Discord says it: the SDK would try again by itself, for half a minute."""
    response = asked.response
    try:
        if response.status == 429:
            raise RateLimitedError("Discord: too many requests", await _pause_s(response))
        if response.status >= 500:
            raise SendError(f"Discord answered {response.status}")
    except SendError:
        response.close()
        raise


async def _pause_s(response: aiohttp.ClientResponse) -> float:
    """Discord says it in the body, to the millisecond; the servers before it in a header."""
    try:
        return float((await response.json(content_type=None))["retry_after"])
    except (ValueError, TypeError, KeyError, aiohttp.ClientError):
        try:
            return float(response.headers.get("Retry-After", ""))
        except ValueError:
            return 5.0


@contextmanager
def as_send_errors() -> Iterator[None]:
    """Raise what a request raises as a SendError."""
    try:
        yield
    except discord.HTTPException as error:
        said = f"Discord: {error.text or error} ({error.status}, code {error.code})"
        if error.status == 401:  # the gateway ends, too; then the owner hears of it
            raise NotConnectedError(said) from error
        raise UndeliverableError(said) from error
    except aiohttp.ClientConnectorError as error:
        raise NotConnectedError(f"Discord cannot be reached: {error}") from error
    except (aiohttp.ClientError, OSError) as error:
        said = f"connection to Discord lost: {type(error).__name__} {error}"
        raise SendError(said, may_have_arrived=True) from error


def nonce_of(salt: str, chat: int, nonce: str) -> str:
    """Discord compares nonces over all chats of a bot, for a few minutes; ours count from one in each journal."""
    return sha256(f"{salt}:{chat}:{nonce}".encode()).hexdigest()[:_LONGEST_NONCE]


def quoting(reply_to: str | None, chat: int) -> discord.MessageReference | None:
    """A reference to the message that is answered; if it is gone, the answer is sent all the same."""
    if reply_to is None or not reply_to.isdigit():
        return None
    return discord.MessageReference(message_id=int(reply_to), channel_id=chat, fail_if_not_exists=False)


def view_of(buttons: Sequence[Button]) -> discord.ui.View | None:
    """Buttons as components. The value travels in the button itself, so that a press is understood after a restart.

    A value that is too long for that gives way to the label: pressing then says what stands on the button.
    """
    if not buttons:
        return None
    view = discord.ui.View(timeout=None)
    taken: set[str] = set()
    for button in buttons[:_MOST_BUTTONS]:
        label = button.label[:_LONGEST_LABEL]
        value = button.value if 0 < len(button.value) <= _LONGEST_VALUE else label
        if value not in taken:  # Discord refuses two with the same value
            taken.add(value)
            view.add_item(discord.ui.Button(label=label, custom_id=value))
    view.stop()  # presses are heard as events; the SDK need not remember each view that was ever sent
    return view
