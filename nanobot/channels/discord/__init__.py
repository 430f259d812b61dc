"""Discord, on discord.py: servers, threads and private messages, by the gateway.

Only the registry names it, so nothing of it is loaded before the channel is enabled. Read channel (how it lives, what
goes out), hearing (what one connection hears), link (the connection, and what its ends mean), inbound (what a message
says), lanes (each chat in its order), past (what was heard, so that nothing is missed), menu (the slash commands) and
outbound (what Discord refuses, and why).
"""
