"""Walls: what tools may touch, and what no text may tell. Small frozen policies come in from above; nothing here knows
the config.

Everybody above may import it; it imports nobody but `errors` and `utils`. Read places, then paths, then secrets;
grants (what the owner said "always" to) and provenance (whose words a file holds).
"""
