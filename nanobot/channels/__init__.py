"""Channels: the ways people reach the bot. A channel knows its platform and the bus; it never meets the agent.

The gateway, the command line and all above may import it; it imports the bus and what is under it, and pairing. Read
base (what a channel is, with errors and evidence), access (who may speak), media (what comes attached), posting (what
most platforms share), supervisor (how one stays alive), registry and manager (all of them), then one platform:
websocket (with its frames, and the backlog for clients that come back), telegram.
"""
