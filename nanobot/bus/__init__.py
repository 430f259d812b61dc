"""The bus: what crosses between people and the agent. Channels and agent are strangers that meet only here.

The agent, channels and all above may import it; it imports nobody but messages. Read events (the messages), then queue
(the road).
"""
