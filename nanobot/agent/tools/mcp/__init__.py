"""Tools of MCP servers: programs the config starts, or URLs it names (https://modelcontextprotocol.io).

`source` registers the tools, `server` connects and asks a server, `transport` has the SDK's transports.
"""
