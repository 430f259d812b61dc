"""WhatsApp: private and group chats of a linked account, through a bridge on Node.js.

`channel` has WhatsAppChannel; `bridge` installs and runs the bridge, which is in `bridge/`, and talks to it.
"""

from nanobot.channels.whatsapp.channel import WhatsAppChannel as WhatsAppChannel
