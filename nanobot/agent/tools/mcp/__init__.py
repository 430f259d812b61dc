"""Tools of MCP servers: programs the config starts, or URLs it names (https://modelcontextprotocol.io).

`source` registers the tools, `server` manages a server's connection, `stdio` and `remote` are the transports.
"""
