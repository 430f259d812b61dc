"""Screens: the terminal's commands and the chat. The only home of Typer, Rich and prompt-toolkit.

Read commands (the table of commands), then any command's own file.
"""
