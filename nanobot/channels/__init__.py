"""Channels: ways people reach the bot. A channel and the agent are strangers that meet only at the bus.

Gateway and runtime may import it; agent and heartbeat are strangers. Read text (an answer in a platform's dialect) and
media (attachments, both ways).
"""
