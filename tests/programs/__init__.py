"""Programs that tests run as child processes, as `python -m tests.programs.NAME`."""
