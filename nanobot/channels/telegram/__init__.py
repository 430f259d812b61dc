"""Telegram, by long polling.

`channel` has TelegramChannel, `polling` receives updates and confirms them, `incoming` reads an update, `client` sends,
`state` is kept across restarts, `api` runs the SDK over our own connections. `client`, `incoming` and `api` import the
SDK, which takes 0.3 s and 35 MB, so they are imported when a bot is started.
"""

from nanobot.channels.telegram.channel import TelegramChannel

__all__ = ["TelegramChannel"]
