"""The language of the local socket: JSON lines. One request a connection; what follows on it belongs to that request.

Where it is: `state/gateway.sock`, which only its owner may open; where such sockets are not to be had (Windows, a path
that is too long for one), a port on loopback that `state/gateway.port` names, with a token to say first.

    server  {"type": "hello", "protocol": 1, "version": ..., "pid": ..., "workspace": ...}
    client  {"do": "turn", "text": ..., "session": ..., "media": [...], "answers": ...}
    client  {"do": "stop"} | {"do": "waiting", "lines": [...]}      while that turn runs
    client  {"do": "answer", "question": ..., "answer": "once"}     to its approval_asked; `answers` said that it would
    client  {"do": "background", "session": ...}     working (at_work), message (text) ..., told: once nothing works
    server  {"type": "run_started", ...} ... {"type": "turn_ended", ...}

Light on purpose: a command that only talks through the gateway imports this and `client`, and nothing heavy.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROTOCOL = 1
LONGEST_LINE = 16 * 1024 * 1024
"""Of bytes; a request or an answer longer than that is none."""
LONGEST_PATH = 100
"""Bytes of a socket's path; systems take 104 or 108."""

Frame = dict[str, Any]


def socket_file(state: Path) -> Path:
    """Where the socket is."""
    return state / "gateway.sock"


def port_file(state: Path) -> Path:
    """Where the port and its token stand, where there is no socket."""
    return state / "gateway.port"


def settings_in(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings that an environment makes (`NANOBOT_AGENTS__...`), by name; of what they are, only a digest."""
    return {
        name: hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
        for name, value in environ.items()
        if name.upper().startswith("NANOBOT_") and "__" in name
    }


def encoded(frame: Frame) -> bytes:
    """A frame as it is written."""
    return json.dumps(frame, ensure_ascii=True, default=str).encode() + b"\n"


def decoded(line: bytes) -> Frame:
    """A frame as it was read. Raises ValueError."""
    try:
        frame = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(frame, dict):
        raise ValueError("a frame is a JSON object")  # noqa: TRY004 as json's own errors are
    return frame
