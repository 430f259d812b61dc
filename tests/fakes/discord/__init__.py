"""A Discord on loopback: world (who said what where), gateway and rest (how a bot hears of it, and speaks)."""
