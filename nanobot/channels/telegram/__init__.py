"""Telegram, by long polling. Read channel (a bot's life), polling (how updates are taken and confirmed), incoming (what
an update says), line (what goes out), state (what outlives a restart), api (the SDK over our own connections).

`line`, `incoming` and `api` bring the SDK, and are imported when a bot is started: it takes 0.3 s and 35 MB.
"""

from nanobot.channels.telegram.channel import TelegramChannel

__all__ = ["TelegramChannel"]
