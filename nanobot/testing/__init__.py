"""Test support for nanobot and for plugins. Works with any test runner.

`open_bot` is an agent with a scripted model:

async with open_bot(tmp_path, "hi") as bot:
    assert await bot.say("hello") == "hi"

Conformance checks for plugins: `channels.channel_checks`, `providers.provider_checks`, `tools.tool_checks`. For a
channel, derive the fake of its platform from `platform.Platform`; `live_channel` runs the channel on it.

`model_server` is a fake model server that validates requests with `protocol_rules`; `event_rules` validates the events
of a turn.
"""

from nanobot.testing.bot import Bot, Line, Pause, RecordingSink, ScriptedProvider, calls, open_bot
from nanobot.testing.checks import Check
from nanobot.utils.clock import FrozenClock

__all__ = ["Bot", "Check", "FrozenClock", "Line", "Pause", "RecordingSink", "ScriptedProvider", "calls", "open_bot"]
