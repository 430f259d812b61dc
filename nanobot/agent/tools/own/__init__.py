"""The user's own tools: Python files in the workspace's `tools/`, loaded as they appear, once their owner allows it.

Used by runtime and the commands. Reading order: source (what a turn is offered) -> loading (a file becomes a tool) ->
check (what a file may not reach for) -> tool (one call) -> aside (where it runs).
"""
