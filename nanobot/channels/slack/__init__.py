"""Slack, in socket mode: channels, threads, group messages and private ones, without an address of one's own.

Read channel (what comes and goes), lines (the connections, and what their ends mean), incoming (what an event says),
mrkdwn (its text as people read it), names (what people are called), twins (the mention that comes twice), past (what
was heard, so that nothing said meanwhile is missed) and web (the Web API, and what a refusal means). `lines` and `web`
bring slack-sdk and aiohttp, and are imported when the channel starts: that takes 0.3 s.
"""

from importlib.util import find_spec

from nanobot.channels.slack.channel import SlackChannel

for _needed in ("slack_sdk", "aiohttp"):
    if find_spec(_needed) is None:  # said by whoever loads the channel, who knows the name of the extra
        raise ModuleNotFoundError(f"No module named {_needed!r}", name=_needed)

__all__ = ["SlackChannel"]
