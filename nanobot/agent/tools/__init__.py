"""Tools: what the agent can do. A new built-in tool is a module here with a `Tool` in it and a line in `builtin`.

`mcp` and `own` are sources of tools that come and go while the bot runs.
"""
