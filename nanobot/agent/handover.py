"""The handover: what a session says of its own past that is no longer shown. It stands last in the system prompt.

Consolidation writes it: what is done, what is being done, what comes next, and the question that waits for an answer.
A session that the original design consolidated says it in `_last_summary`.
"""

from collections.abc import Mapping
from typing import Any

from nanobot.utils.text import clip

HANDOVER = "handover"
OLD_SUMMARY = "_last_summary"
"""Keys of a session's metadata."""
_MOST = 4_000


def handover_of(metadata: Mapping[str, Any]) -> str:
    """The note, empty where there is none."""
    for name in (HANDOVER, OLD_SUMMARY):
        found = metadata.get(name)
        text = found.get("text") if isinstance(found, dict) else found
        if isinstance(text, str) and text.strip():
            return clip(text.strip(), _MOST)
    return ""
