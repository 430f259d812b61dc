"""The bus: what crosses between people and the agent. Channels and agent are strangers that meet only here.

The agent, channels and all above may import it; it imports messages and what is under them. Read events (the messages),
queue (the road), then journal (what remembers through a crash) and late (what it refused for a while).
"""
