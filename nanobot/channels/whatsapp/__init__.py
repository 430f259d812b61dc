"""WhatsApp: private and group chats of a linked account, through a bridge on Node.js.

`channel` has WhatsAppChannel, `connection` speaks the bridge's protocol, `process` installs
and runs the bridge, which is in `bridge/`.
"""

from nanobot.channels.whatsapp.channel import WhatsAppChannel

__all__ = ["WhatsAppChannel"]
