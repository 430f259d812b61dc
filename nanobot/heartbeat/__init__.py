"""The heartbeat: a regular look at HEARTBEAT.md, which costs nothing while there is nothing to do.

The gateway imports it; agent and channels are strangers. Read tasks (what in the file is a task), decision (the one
question to a model, and its answer), then service (when it is asked).
"""
