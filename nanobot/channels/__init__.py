"""Channels: the ways people reach the bot. A channel knows its platform and the bus, never the agent.

`base` has `BaseChannel`, `chat_channel` what most platforms share; `manager` runs all channels; `registry` has the
class of each. One module or package per platform.
"""
