"""A process that wants a token that is good now, so many times: `renewing_child FOLDER TIMES`. Prints the last one."""

import asyncio
import sys
from functools import partial
from pathlib import Path

from nanobot.net.pools import HttpPools
from nanobot.providers.accounts.openai import renew
from nanobot.providers.accounts.provider import AccountTokens
from nanobot.providers.accounts.store import AccountStore


async def main(folder: str, times: int) -> None:
    pools = HttpPools()
    tokens = AccountTokens("openai_codex", AccountStore(Path(folder)), partial(renew, pools=pools))
    print("ready", flush=True)
    sys.stdin.readline()
    found = [(await tokens.current()).access_token for _ in range(times)]
    print(found[-1], flush=True)
    await pools.close()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
