"""Channels: ways people reach the bot. A channel and the agent are strangers that meet only at the bus.

Gateway and runtime may import it; agent and heartbeat are strangers. Read access (who may speak).
"""
