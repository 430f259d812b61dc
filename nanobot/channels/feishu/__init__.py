"""Feishu and Lark, over the long connection of an app of one's own: private chats, groups and topics, no public URL.

`channel` has FeishuChannel, `api` sends requests and creates an app for the setup, `incoming` reads what arrives.
"""

from nanobot.channels.feishu.channel import FeishuChannel as FeishuChannel
