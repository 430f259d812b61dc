"""The sandbox around commands: restrictions that the operating system enforces, whatever a command consists of.

`Sandbox` puts the parts together: the view (what a command may see and write), resource limits, and bubblewrap,
Landlock and seccomp to enforce them.
"""
