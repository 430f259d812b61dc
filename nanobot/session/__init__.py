"""Sessions: stored conversations, and the half-done turn beside them.

Read types (a session in memory), then manager, then reader and writer (the disk), lines, stems, locks, checkpoint.
"""
