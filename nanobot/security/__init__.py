"""Walls: what tools may touch, and what no text may tell. Small frozen policies come in from above; nothing here knows
the config.

Everybody above may import it; it imports nobody but `errors`, `utils` and `messages`. Read places, paths, secrets;
grants (what the owner said "always" to) and provenance (whose words a file holds).
"""
