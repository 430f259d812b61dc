"""The checks of `nanobot doctor`: decorated functions in these modules, run by `cli/commands/doctor.py`."""
