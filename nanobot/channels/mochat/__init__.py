"""Mochat: the chats and panels of an agent, over Socket.IO, and by polling while there is no socket.

`channel` has MochatChannel, `api` sends requests, `socket` holds the connection, `incoming` reads messages.
"""

from nanobot.channels.mochat.channel import MochatChannel

__all__ = ["MochatChannel"]
