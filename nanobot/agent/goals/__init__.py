"""Goals: what a session works on over many turns and restarts, until it is reached, stopped, or over its limits."""
