"""The courtesy in front of the wall: what a command says it will do, read before it runs.

A text that somebody made to deceive gets past it; that is what the wall is for. It spares an honest model a mistake,
and tells it what to do instead. Reading order: words (a line as the shell takes it apart; scanning: pieces of one),
wrappers (what runs what), danger (what is refused, a row each), fetches (what brings words from outside), guard (all of
it, and the owner's own patterns). For whoever keeps account of files: runs (what runs and reads files), writes (what
plainly writes them).
"""
