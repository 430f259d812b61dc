"""A module per subject. The command table is in `nanobot.cli.main`."""

from nanobot.cli.main import app as app
