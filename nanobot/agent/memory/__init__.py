"""Memory: what the agent keeps beyond a session, in Markdown files that a person may read and edit.

`MemoryStore` reads and writes the files; `consolidation` moves old messages into them, `dream` tidies them, `revisions`
knows every change, `editor` is what a person can do with it.
"""

from nanobot.agent.memory.store import MemoryStore as MemoryStore
