"""Slash commands: messages to nanobot itself, the same in the terminal and in every channel."""
