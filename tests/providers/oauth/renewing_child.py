"""A process that wants a token that is good now: `python -m tests.providers.oauth.renewing_child FOLDER STALE`."""

import asyncio
import sys
from functools import partial
from pathlib import Path

from nanobot.providers.oauth.accounts import AccountStore
from nanobot.providers.oauth.openai import renew
from nanobot.providers.oauth.tokens import AccountTokens
from nanobot.utils.http import HttpPools


async def main(folder: str) -> None:
    pools = HttpPools()
    tokens = AccountTokens("openai_codex", AccountStore(Path(folder)), partial(renew, pools=pools))
    print("ready", flush=True)
    sys.stdin.readline()
    print((await tokens.current()).access_token, flush=True)
    await pools.close()


asyncio.run(main(sys.argv[1]))
