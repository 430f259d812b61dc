"""Programs that tests run as child processes (`python -m tests.programs.NAME`), and plugins that they install."""
