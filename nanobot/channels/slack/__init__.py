"""Slack, in Socket Mode: channels, threads, group and private chats, without a public URL.

`channel` has SlackChannel; `socket_mode` keeps the connections, `web_api` sends requests, `incoming` reads events,
`mrkdwn` reads Slack's text, `names` looks up user names, `history` is kept across restarts. `socket_mode` and `web_api`
import slack-sdk and aiohttp, which takes 0.3 s, so they are imported when the channel starts.
"""

from importlib.util import find_spec

from nanobot.channels.slack.channel import SlackChannel

for _needed in ("slack_sdk", "aiohttp"):
    if find_spec(_needed) is None:  # `registry.load_channel` says what to install
        raise ModuleNotFoundError(f"No module named {_needed!r}", name=_needed)

__all__ = ["SlackChannel"]
