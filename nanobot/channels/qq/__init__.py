"""QQ: private and group chats of an official bot, without a public URL.

`channel` has QQChannel, `api` sends requests, `incoming` reads messages.
"""

from nanobot.channels.qq.channel import QQChannel

__all__ = ["QQChannel"]
