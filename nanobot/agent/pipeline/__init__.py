"""One turn from its message to its end. Only the loop and runtime import it.

Read work (a turn and what it works with), then phases (what is done in which order), then watch (a run that hangs),
left_over (a turn that was cut off), roll_over (a session that has become too large) and hooked (what hooks of plugins
see of it).
"""
