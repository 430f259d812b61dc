"""Walls: what tools may touch. Small frozen policies come in from above; nothing here knows the config."""
