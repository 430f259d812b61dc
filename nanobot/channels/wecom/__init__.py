"""WeCom: private and group chats of a smart robot, over its long connection.

`channel` has WeComChannel, `connection` the socket, `incoming` reads messages and decrypts files.
"""

from nanobot.channels.wecom.channel import WeComChannel

__all__ = ["WeComChannel"]
