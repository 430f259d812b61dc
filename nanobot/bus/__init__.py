"""The bus: what crosses between people and the agent. Channels and agent are strangers that meet only here.

Read events (the messages), then queue (the road).
"""
