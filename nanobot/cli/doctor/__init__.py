"""The checks of `nanobot doctor`: functions in these modules, listed in `table`."""
