"""Microsoft Teams: private chats, group chats and channels of the user's own bot.

`channel` has TeamsChannel, `api` sends requests to Microsoft and checks who calls us, `incoming` reads messages.
"""

from nanobot.channels.msteams.channel import TeamsChannel

__all__ = ["TeamsChannel"]
