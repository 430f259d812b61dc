"""The session summary: what a session remembers of messages that left its history. Last part of the system prompt.

Consolidation writes it: work done, in progress and next, and a pending question. Sessions of the original nanobot keep
theirs in `_last_summary`.
"""

from collections.abc import Mapping
from typing import Any

from nanobot.agent.scope import Scope
from nanobot.messages.types import ChatMessage, Provenance, is_outside, least_trusted
from nanobot.utils.text import clip, count_noun

SUMMARY_KEY = "handover"
OLD_SUMMARY = "_last_summary"
"""Keys in a session's metadata."""
FORGOTTEN_KEY = "forgotten"
"""Metadata key: journal keys of subagent reports from before the session was reset; they are dropped."""
_MAX_CHARS = 4_000
_LEFT_OUT = (
    "{count} of this conversation had no room here and could not be summarised yet. What was asked there may be done "
    "already: before you start on something old whose end you cannot see, look for it with session_search."
)


def summary_metadata(text: str, provenance: Provenance) -> str | dict[str, str]:
    """The summary as stored in the metadata; with its provenance if it may contain untrusted content."""
    return {"text": text, "provenance": provenance.value} if is_outside(provenance) else text


def summary_provenance(metadata: Mapping[str, Any], session_key: str) -> Provenance:
    """Provenance of the summary. One written by the original nanobot is trusted like messages of that chat."""
    stored = metadata.get(SUMMARY_KEY)
    if isinstance(stored, dict):
        return least_trusted([str(stored.get("provenance", Provenance.PERSON))])
    if stored or not metadata.get(OLD_SUMMARY):
        return Provenance.OWNER
    return Provenance.OWNER if session_key.startswith("cli:") else Provenance.PERSON


def untrusted_summary(metadata: Mapping[str, Any], session_key: str, scope: Scope) -> list[ChatMessage]:
    """The summary as a row without a turn, if it may contain untrusted content; in a chat with others it always may."""
    text, trust = session_summary(metadata), summary_provenance(metadata, session_key)
    if not scope.is_owners:
        trust = least_trusted([trust, Provenance.PERSON])
    if not text or not is_outside(trust):
        return []
    return [{"role": "tool", "name": "what was said here earlier", "content": text, "provenance": trust}]


def session_summary(metadata: Mapping[str, Any]) -> str:
    """The summary text; empty if there is none."""
    for name in (SUMMARY_KEY, OLD_SUMMARY):
        stored = metadata.get(name)
        text = stored.get("text") if isinstance(stored, dict) else stored
        if isinstance(text, str) and text.strip():
            return clip(text.strip(), _MAX_CHARS)
    return ""


def add_omitted_note(summary: str, count: int) -> str:
    """Add a warning that `count` messages left the window without a summary, so that the model does not repeat work
    whose end it cannot see.
    """
    if count <= 0:
        return summary
    warning = _LEFT_OUT.format(count=count_noun(count, "earlier message"))
    return f"{summary}\n\n{warning}" if summary else warning
