"""Tools of MCP servers: programs the config starts, or addresses it names (https://modelcontextprotocol.io).

Used by runtime and the commands; everything else meets its tools in the registry. Reading order: settings -> source
(what a turn is offered; shelf: where that would be too much) -> tool (one call) -> server (a life: asleep, connected,
failed) -> link (one connection) -> stdio, remote (its wires) -> program (what runs at the end of the first) -> keeper
(ends a program with us); and beside them incoming, schema, names, listing, results.
"""
