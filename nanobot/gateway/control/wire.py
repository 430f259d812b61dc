"""The protocol of the local socket: JSON lines, one request per connection.

The socket is `state/gateway.sock`, which only its owner may open. Without Unix sockets (Windows, a path that is too
long) it is a port on loopback, named in `state/gateway.port` with a token that the client sends first.

    server  {"type": "hello", "protocol": 1, "version": ..., "pid": ..., "workspace": ...}
    client  {"do": "turn", "text": ..., "session": ..., "media": [...], "folder": ..., "answers": ...}
    client  {"do": "stop"} | {"do": "waiting", "lines": [...]}      while that turn runs
    client  {"do": "answer", "question": ..., "answer": "once"}     to approval_asked, if the request had `answers`
    client  {"do": "background", "session": ...}     working (running), message (text) ..., delivered: the end
    server  {"type": "run_started", ...} ... {"type": "turn_ended", ...}

Imports nothing heavy, for commands that only talk to the gateway.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROTOCOL = 1
LONGEST_LINE = 16 * 1024 * 1024
"""Longest frame, in bytes."""
LONGEST_PATH = 100
"""Longest socket path, in bytes; systems allow 104 or 108."""

Frame = dict[str, Any]


def socket_file(state: Path) -> Path:
    return state / "gateway.sock"


def port_file(state: Path) -> Path:
    """The file with the port and token, used without a Unix socket."""
    return state / "gateway.port"


def settings_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the config settings in an environment (`NANOBOT_AGENTS__...`): name to digest of the value."""
    return {
        name: hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
        for name, value in environ.items()
        if name.upper().startswith("NANOBOT_") and "__" in name
    }


def encode_frame(frame: Frame) -> bytes:
    return json.dumps(frame, ensure_ascii=True, default=str).encode() + b"\n"


def decode_frame(line: bytes) -> Frame:
    """Raises ValueError."""
    try:
        frame = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(frame, dict):
        raise ValueError("a frame is a JSON object")  # noqa: TRY004 as json's own errors are
    return frame
