"""Server-sent events as bytes (html.spec.whatwg.org/multipage/server-sent-events.html)."""

import json
from typing import Any

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
CONTENT_TYPE = "text/event-stream; charset=utf-8"
PING_S = 15.0
PING = b": ping\n"
"""A comment. Without an empty line behind it: the OpenAI clients take that for an event."""


def comment(text: str) -> bytes:
    """A comment, which clients skip; line breaks become spaces."""
    return f": {' '.join(text.split())}\n".encode()


def event(data: Any, *, event_id: str | None = None, name: str | None = None) -> bytes:
    """An event with JSON data, or with the text of a string as it is."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = (f"id: {event_id}\n" if event_id is not None else "") + (f"event: {name}\n" if name is not None else "")
    return f"{head}data: {text}\n\n".encode("utf-8", "replace")
