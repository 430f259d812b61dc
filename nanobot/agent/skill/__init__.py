"""One skill: its SKILL.md read, what it needs, what is wrong with it, and how it comes into a workspace.

`agent/skills` (all of them, and which stand in a prompt) and the commands stand on it. Read manual (the file and its
front matter) first, then needs (what it asks for, and how that is installed), programs (what of its files is code),
warnings (what to look at before one trusts it), faults (what `nanobot skills validate` says), bundle (a folder or zip
of somebody's, read safely), book (what was installed, what was used) and installing.
"""
