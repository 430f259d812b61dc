"""A hook that is a program: it reads the event as JSON on stdin and writes its reply as JSON to stdout.

It exits with 0 and prints nothing, or one of {"deny": REASON}, {"text": TEXT}, {"arguments": {...}}. Anything else is a
failure of the hook. Its child processes end with it.
"""

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nanobot.agent.hooks import Deny, NewArguments, NewResult, NewText
from nanobot.utils.processes import child_process

METHODS = {
    "message": "on_message",
    "request": "on_request",
    "answer": "on_answer",
    "beforeTool": "before_tool",
    "afterTool": "after_tool",
    "turnEnd": "on_turn_end",
}
"""Event names on the wire and in the config, with the hook method of each."""
_REPLIES: Mapping[str, Mapping[str, type]] = {
    "on_message": {"text": NewText, "deny": Deny},
    "before_tool": {"arguments": NewArguments, "deny": Deny},
    "after_tool": {"text": NewResult},
}
"""What a program may reply, by method."""
_MAX_OUTPUT_BYTES = 1_000_000


class CommandHookError(Exception):
    """The program failed or its output is not allowed; the text says which."""


async def run_command_hook(
    command: Sequence[str], folder: Path, env: Mapping[str, str], method: str, seen: Any
) -> object:
    """Run the program in this folder with this environment; return its reply as the hook method would.

    Cancelling kills the program and its children. Raises CommandHookError, OSError.
    """
    event = next(event for event, name in METHODS.items() if name == method)
    with tempfile.TemporaryFile() as stdin:
        stdin.write(json.dumps({"event": event, **asdict(seen)}, default=str).encode())
        stdin.seek(0)
        async with child_process(command, cwd=folder, env=env, stdin=stdin.fileno()) as child:
            stdout, stderr = await asyncio.gather(_read_all(child.stdout), _read_all(child.stderr))
            code = await child.wait()
    if code != 0:
        last = (stderr.decode("utf-8", "replace").strip().splitlines() or ["no error output"])[-1]
        raise CommandHookError(f"it exited with {code}: {last[:200]}")
    try:
        reply = json.loads(stdout) if stdout.strip() else {}
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        raise CommandHookError(f"its output is not a JSON object: {stdout[:80]!r}")
    for name, make in _REPLIES.get(method, {}).items():
        if isinstance(value := reply.get(name), dict if name == "arguments" else str):
            made: object = make(value)
            return made
    if reply:
        raise CommandHookError(f"its output has {', '.join(sorted(reply))[:80]}, which is not allowed for this event")
    return None


async def _read_all(stream: asyncio.StreamReader) -> bytes:
    """Read until the end of the stream, but keep only the first `_MAX_OUTPUT_BYTES`."""
    output = bytearray()
    while chunk := await stream.read(65_536):
        output += chunk[: max(0, _MAX_OUTPUT_BYTES - len(output))]
    return bytes(output)
