"""Sessions: stored conversations, one append-only file for each session key, and the checkpoint of a turn in progress.

Import `Session` and `SessionManager` from `nanobot.session.manager`, `Checkpoint` from `nanobot.session.checkpoint`.
`nanobot.session.search` is full-text search.
"""
