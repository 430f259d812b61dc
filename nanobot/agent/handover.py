"""The handover: what a session says of its own past that is no longer shown. It stands last in the system prompt.

Consolidation writes it: what is done, what is being done, what comes next, and the question that waits for an answer.
A session that the original design consolidated says it in `_last_summary`.
"""

from collections.abc import Mapping
from typing import Any

from nanobot.agent.scope import Scope
from nanobot.messages.types import ChatMessage, Provenance, is_outside, least_trusted
from nanobot.utils.text import clip, counted

HANDOVER = "handover"
OLD_SUMMARY = "_last_summary"
"""Keys of a session's metadata."""
FORGOTTEN = "forgotten"
"""There too: the keys of reports that come from before the session was reset, and are told to nobody."""
_MOST = 4_000
_LEFT_OUT = (
    "{count} of this conversation had no room here, and could not be summed up yet. What was asked there may be done: "
    "before you begin something old of which you see no end, look for it with session_search."
)


def kept(text: str, provenance: Provenance) -> str | dict[str, str]:
    """The note as metadata keeps it: where others' words may be in it, it says whose."""
    return {"text": text, "provenance": provenance.value} if is_outside(provenance) else text


def trust_of(metadata: Mapping[str, Any], session_key: str) -> Provenance:
    """Whose words the note may hold. What the original wrote down is as trusted as what people wrote there."""
    found = metadata.get(HANDOVER)
    if isinstance(found, dict):
        return least_trusted([str(found.get("provenance", Provenance.PERSON))])
    if found or not metadata.get(OLD_SUMMARY):
        return Provenance.OWNER
    return Provenance.OWNER if session_key.startswith("cli:") else Provenance.PERSON


def told_by_others(metadata: Mapping[str, Any], session_key: str, scope: Scope) -> list[ChatMessage]:
    """The note as a row of no turn, where it may hold words of others: in a chat in which they write, always."""
    text, trust = handover_of(metadata), trust_of(metadata, session_key)
    if not scope.is_owners:
        trust = least_trusted([trust, Provenance.PERSON])
    if not text or not is_outside(trust):
        return []
    return [{"role": "tool", "name": "what was said here earlier", "content": text, "provenance": trust}]


def handover_of(metadata: Mapping[str, Any]) -> str:
    """The note, empty where there is none."""
    for name in (HANDOVER, OLD_SUMMARY):
        found = metadata.get(name)
        text = found.get("text") if isinstance(found, dict) else found
        if isinstance(text, str) and text.strip():
            return clip(text.strip(), _MOST)
    return ""


def with_left_out(note: str, count: int) -> str:
    """The note where so many messages have left the window and no model could sum them up: who sees no end of a task
    must not take it for undone.
    """
    if count <= 0:
        return note
    told = _LEFT_OUT.format(count=counted(count, "earlier message"))
    return f"{note}\n\n{told}" if note else told
