"""Tools: what the agent can do. A new one is a file here with a Tool in it and a line in `builtin`.

The agent, runtime and cli may import it. Read base (with reach), then registry (with validation), builtin, then any
tool; `disk`, `textfile`, `differences`, `grep_search`, `grep_rows`, `capture` and `spill` are what they stand on. `mcp`
and `own` are sources of tools that come and go.
"""
