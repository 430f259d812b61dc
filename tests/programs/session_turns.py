"""Turns that are appended to one session, without end, for `fork_and_kill`."""

import os
from pathlib import Path
from typing import Any

from nanobot.session.manager import SessionManager


async def main(folder: Path, first: int) -> None:
    manager = SessionManager(folder)
    number = first
    while True:
        async with manager.hold("cli:direct") as session:
            call = {"id": f"c{number}", "type": "function", "function": {"name": "exec", "arguments": "{}"}}
            rows: list[Any] = [
                {"role": "user", "content": f"u{number}"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{number}", "name": "exec", "content": "x" * (number % 7) * 500},
                {"role": "assistant", "content": f"a{number}"},
            ]
            for row in rows:
                await manager.append(session, row)
            if number % 5 == 0:
                session.last_consolidated = max(session.message_count - 8, 0)
                await manager.append(session)
            if number % 7 == 0:
                session.messages[0]["edited"] = number  # type: ignore[typeddict-unknown-key]
                manager.save(session)
            os.write(1, b"%d\n" % number)
        number += 1
