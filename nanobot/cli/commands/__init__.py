"""One module per command or group. The command table is in `nanobot.cli.main`."""

from nanobot.cli.main import app as app
