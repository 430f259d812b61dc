"""Walls: what tools may touch. Small frozen policies come in from above; nothing here knows the config.

The agent's tools and runtime may import it; it imports nobody but `errors`. Read paths.
"""
