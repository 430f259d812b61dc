"""Discord, on discord.py: servers, threads and private messages, by the gateway.

`channel` has DiscordChannel, `client` opens the SDK's client and converts its errors, `incoming` reads messages,
`history` is kept across restarts.
"""

from nanobot.channels.discord.channel import DiscordChannel

__all__ = ["DiscordChannel"]
