"""Telegram, by long polling.

`channel` has TelegramChannel, `bot` connects to Telegram and converts the SDK's errors, `incoming` reads an update.
"""

from nanobot.net.http import load_httpx

load_httpx()  # without its command line, which the SDK would import: 50 ms and 5 MB

from nanobot.channels.telegram.channel import TelegramChannel  # noqa: E402 behind load_httpx

__all__ = ["TelegramChannel"]
