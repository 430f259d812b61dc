"""Sessions: stored conversations. Read types, then manager."""
