"""Feishu and Lark, over the long connection of an app of one's own: private chats, groups and topics, no public URL.

`channel` has FeishuChannel, `api` sends requests, `frames` is the encoding of the connection, `incoming` reads events,
`registration` creates an app for the setup.
"""

from nanobot.channels.feishu.channel import FeishuChannel

__all__ = ["FeishuChannel"]
