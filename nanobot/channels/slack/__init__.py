"""Slack, in Socket Mode: channels, threads, group and private chats, without a public URL.

`channel` has SlackChannel and reads events, `web_api` sends requests.
"""

from nanobot.channels.slack.channel import SlackChannel as SlackChannel
