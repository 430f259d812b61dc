"""WeChat: private chats with the bot of a personal account, which its owner logs in with a QR code.

`channel` has WeixinChannel, `api` the requests, `cdn` the encrypted files, `incoming` reads messages, `login` is the
login.
"""

from nanobot.channels.weixin.channel import WeixinChannel

__all__ = ["WeixinChannel"]
