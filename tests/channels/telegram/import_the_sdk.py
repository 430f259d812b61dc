"""A program that embeds nanobot: its exit code says whether importing Telegram's SDK has changed the process."""

import os
import sys

from nanobot.net.clients import load_httpx

if __name__ == "__main__":
    before = {**os.environ}
    load_httpx()

    import httpx._main

    import nanobot.channels.telegram.client  # noqa: F401 the import is the point

    sys.exit(before != {**os.environ} or not hasattr(httpx._main, "print_help"))
