"""DingTalk, in stream mode: private and group chats of a robot, without a public URL.

`channel` has DingTalkChannel, `api` sends requests, `incoming` reads messages.
"""

from nanobot.channels.dingtalk.channel import DingTalkChannel

__all__ = ["DingTalkChannel"]
