"""Slack, in Socket Mode: channels, threads, group and private chats, without a public URL.

`channel` has SlackChannel, `web_api` sends requests, `incoming` reads events.
"""

from nanobot.channels.slack.channel import SlackChannel

__all__ = ["SlackChannel"]
