"""Tools: what the agent can do. A new one is a file here with a Tool in it and a line in `builtin`.

Read base, then registry, then any tool.
"""
