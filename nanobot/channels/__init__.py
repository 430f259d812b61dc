"""Channels: the ways people reach the bot. A channel knows its platform and the bus; it never meets the agent.

The gateway, the command line and all above may import it; it imports the bus and what is under it, and pairing. Read
base (what a channel is), errors (how sending fails), evidence (what shows that it lives), access (who may speak),
posting (what most platforms share) over text, media (what arrives), outgoing (what is sent along) and media_kinds,
marks (up to where one has heard), supervisor (how one stays alive), manager (all of them), registry (which class serves
which). Then one platform: telegram, discord, slack, email, or websocket with its frames and its backlog (what is kept
for clients that come back).
"""
