"""WeChat: private chats with the bot of a personal account.

`channel` has WeixinChannel and reads messages, `api` sends requests and moves files, `login` is the login with a QR
code.
"""

from nanobot.channels.weixin.channel import WeixinChannel

__all__ = ["WeixinChannel"]
