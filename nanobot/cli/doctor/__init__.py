"""The checks of `nanobot doctor`: functions in these modules, listed in `cli/commands/doctor.py`."""
