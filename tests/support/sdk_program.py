"""The SDK of a platform as a program, against the platform's fake: it shows that the fake is right."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any


@asynccontextmanager
async def sdk_program(name: str, *words: str, **environ: str) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """Run it until the end of the block. What this yields reads the next line of JSON that it prints."""
    command = [sys.executable, "-m", f"tests.programs.{name}", *words]
    program = await asyncio.create_subprocess_exec(
        *command, env=os.environ | environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert program.stdout is not None
    lines = program.stdout

    async def read() -> Any:
        return json.loads(await asyncio.wait_for(lines.readline(), 30))

    try:
        yield read
    finally:
        with suppress(ProcessLookupError):
            program.kill()
        await program.wait()
