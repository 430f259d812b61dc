"""Sessions: stored conversations, and the half-done turn beside them.

The agent, runtime and cli may import it; providers are strangers. Read types (a session in memory), then manager,
folder and stems (which file is whose), then reader and writer (the disk), records, lines, checkpoint; search finds
what was said in all of them, imported brings in what others stored.
"""
