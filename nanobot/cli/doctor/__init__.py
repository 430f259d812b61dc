"""`nanobot doctor`: `command` runs the checks, which are decorated functions in the other modules, and prints them."""
