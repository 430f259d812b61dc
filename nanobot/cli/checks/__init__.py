"""What `nanobot doctor` looks at. A check is a function in one of these files and a line in a table.

Only `cli/doctor` imports it. Read findings (what a check is, what it finds) first, then table (all of them, by id) and
examination (how they run), then any topic: settings, files, stores, skills, world, model, servers, channels, plugins;
walls is for `--security`.
"""
