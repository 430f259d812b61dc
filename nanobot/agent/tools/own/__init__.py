"""The user's own tools: Python files in the workspace's `tools/`, loaded as they appear, if the owner allows it.

They run in this process with all its rights.
"""
