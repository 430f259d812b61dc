"""The command line: the terminal chat and all commands. The only package that imports Typer, Rich and prompt-toolkit.

`main` has the command table. A command is a function in `commands`, `setup` or `doctor`, imported when it runs.
"""
