"""One turn, from its message to its end: phases, state, watchdog, and what an interrupted turn left."""
