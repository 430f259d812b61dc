"""How terminals and commands use a bot: `backend` is the interface and the bot of this process, `client` the bot of a
running gateway through its local socket, `server` the gateway's end of it.
"""
