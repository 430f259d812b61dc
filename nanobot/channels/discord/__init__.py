"""Discord, on discord.py: servers, threads and private messages, by the gateway.

`channel` has DiscordChannel, which sends; `event_handler` processes the events of one connection, `client` is the
connection, `inbound` reads messages, `outbound` converts errors, `chat_queues` keeps each chat in order, `history` is
kept across restarts, `menu` has the slash commands. Only the registry names this package: discord.py is loaded when the
channel is enabled.
"""
