"""Telegram, by long polling.

`channel` has TelegramChannel; `bot` is the SDK as we use it: the connection, its errors, messages as `Incoming`.
"""

from nanobot.net.http import load_httpx

load_httpx()  # without its command line, which the SDK would import: 50 ms and 5 MB

from nanobot.channels.telegram.channel import TelegramChannel  # noqa: E402 behind load_httpx

__all__ = ["TelegramChannel"]
