"""The command guard: reads a command line before it runs, refuses dangerous commands and says what to do instead.

It spares an honest model a mistake; text made to deceive gets past it, which the sandbox is for. Provenance uses the
same parser to learn which files a command reads, runs and writes.
"""
