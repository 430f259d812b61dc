"""What a consolidation brings is stored: no fact that was forgotten, the most important ones if room is short."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from nanobot.agent.memory.edits import FactEdit, apply_edits
from nanobot.agent.memory.facts import (
    Fact,
    decode_escaped,
    encode_escaped,
    fact_weight,
    fact_words,
    fit_facts,
    merge_facts,
    parse_facts,
    remove_facts,
)
from nanobot.agent.memory.revisions import (
    UNKNOWN_SOURCE,
    ChangedBy,
    ChangeSource,
    FactOrigin,
    Revision,
    RevisionLog,
    is_like,
)
from nanobot.errors import StorageError
from nanobot.messages.shown import shown_text
from nanobot.messages.types import ChatMessage

_LONG_DAYS = 60.0
_AUTHOR_WEIGHT = {ChangedBy.HAND: 3.0, ChangedBy.SHARE: 3.0, ChangedBy.AGENT: 1.5, ChangedBy.LESSON: -10.0}
"""Importance by author: what a person wrote leaves last, a lesson first."""


def read_for_model(revisions: RevisionLog) -> str:
    """Return MEMORY.md without the lessons, which no model changes. Raises StorageError if it cannot be read
    completely.
    """
    memory = revisions.files
    try:
        text = (memory.file_bytes(memory.memory_file) or b"").decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise StorageError(f"{memory.memory_file} is not valid UTF-8. Save it as UTF-8.") from error
    lessons = {key for key, origin in revisions.origins().items() if origin.is_lesson}
    return remove_facts(text, [fact for fact in parse_facts(text) if fact.key in lessons])


def store_edits(
    revisions: RevisionLog, history_entry: str, edits: Sequence[FactEdit], source: ChangeSource = UNKNOWN_SOURCE
) -> None:
    """Store the result of a consolidation: first the log entry, then the edits of MEMORY.md.

    Duplicate facts are merged, forgotten facts do not return because of older messages, and the least important facts
    beyond the budget move to the archive. Raises StorageError, also if a fact to be replaced is not there any more;
    nothing is written then.
    """
    memory, now = revisions.files, revisions.files.clock.now()
    with revisions.lock():
        data = memory.file_bytes(memory.memory_file)
        before = decode_escaped(data)
        known = {fact.key for fact in parse_facts(before)}
        if any(edit.text and not known.issuperset(edit.keys) for edit in edits):
            raise StorageError(
                "MEMORY.md was changed in the same place in the meantime. The older messages stay in the "
                "session and are consolidated later."
            )
        forgotten, origins = revisions.forgotten(), revisions.origins()
        text, _ = apply_edits(before, [edit for edit in edits if not _is_forgotten(edit.text, forgotten, source.rows)])

        def importance(fact: Fact) -> float:
            return fact_importance(fact, origins.get(fact.key), now) + (0.5 if fact.key not in known else 0.0)

        text, archived = fit_facts(merge_facts(text) if text != before else text, memory.budget_bytes, importance)
        memory.append_history(history_entry)
        files = {memory.memory_file.name: encode_escaped(text) if text != before else data}
        revisions.change(files, ChangedBy.CONSOLIDATION, source, archived=archived)


def fact_importance(fact: Fact, origin: FactOrigin | None, now: datetime) -> float:
    """Rate a fact by what it says, who wrote it, and its age."""
    if origin is None:
        return fact_weight(fact) + _AUTHOR_WEIGHT[ChangedBy.HAND]
    days = max((now.timestamp() - _seconds(origin.change.at, now.timestamp())) / 86_400, 0.0)
    return fact_weight(fact) + _AUTHOR_WEIGHT.get(origin.change.by, 0.0) + 1.0 / (1.0 + days / _LONG_DAYS)


def _is_forgotten(text: str, forgotten: Mapping[str, Revision], rows: Sequence[ChatMessage]) -> bool:
    """Whether a fact was forgotten after the last of these messages in which a person spoke of it."""
    words = fact_words(text)
    times = [_seconds(change.at) for other, change in forgotten.items() if words and is_like(text, other)]
    return bool(times) and not any(
        _seconds(str(row.get("timestamp"))) > max(times)
        for row in rows
        if row.get("role") == "user" and len(words & fact_words(shown_text(row))) >= 0.5 * len(words)
    )


def _seconds(timestamp: str, default: float = 0.0) -> float:
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError, OSError):
        return default
