"""Discord, on discord.py: servers, threads and private messages, by the gateway.

`channel` has DiscordChannel; `client` is the SDK as we use it: the client, its errors, messages as `Incoming`.
"""

from nanobot.channels.discord.channel import DiscordChannel as DiscordChannel
