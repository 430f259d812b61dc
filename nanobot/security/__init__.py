"""Walls: what tools may touch, and what no text may tell. Small frozen policies come in from above; nothing here knows
the config.

Everybody above may import it; it imports nobody but `messages`, `utils` and `errors`. Read by topic. Files: places,
place_set, paths, opening. Secrets: spellings, secrets, vault, references (with secret_commands). Requests: addresses,
urls, network, checked (checked_mcp), fetching. Commands: the room sandbox, then the room shell, the courtesy in front
of it; environment, for all programs we start. Trust: provenance, readings and grants.
"""
