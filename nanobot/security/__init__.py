"""Walls: what tools may touch, and what no text may tell. Small frozen policies come in from above; nothing here knows
the config.

Everybody above may import it; it imports nobody but `errors` and `utils`. Read places, then paths, then secrets;
sandbox is the wall around commands, shell the courtesy in front of it.
"""
