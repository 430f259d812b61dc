"""Screens: the terminal's commands and the chat. The only home of Typer, Rich and prompt-toolkit.

Only `__main__` may import it. Read commands (the table of commands), then any command's own file; agent says how the
chat is to be read.
"""
