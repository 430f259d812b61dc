"""Helpers without knowledge of nanobot's subjects: files, time, text, processes, databases. Imports only `errors`."""
