"""nanobot: a personal AI agent that one person owns.

Reading order: messages -> bus -> agent/turn -> agent/run/runner -> agent/pipeline -> agent/loop -> runtime.
docs/architecture.md draws the floors; import-linter keeps them.
"""

__version__ = "0.1.0"
