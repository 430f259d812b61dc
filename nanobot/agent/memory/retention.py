"""Which facts of a memory are kept: none that was forgotten, the most important if room is short. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from nanobot.agent.memory.facts import Fact, fact_weight, fact_words, fit_facts, merge_facts, parse_facts
from nanobot.agent.memory.revisions import ChangedBy, FactOrigin, Revision, is_like
from nanobot.messages.shown import shown_text
from nanobot.messages.types import ChatMessage

_LONG_DAYS = 60.0
_AUTHOR_WEIGHT = {ChangedBy.HAND: 3.0, ChangedBy.SHARE: 3.0, ChangedBy.AGENT: 1.5, ChangedBy.LESSON: -10.0}
"""Importance by author: what a person wrote leaves last, a lesson first."""


def fit_budget(
    text: str, before: str, origins: Mapping[str, FactOrigin], budget: int, now: datetime
) -> tuple[str, list[Fact]]:
    """Merge duplicates of an updated memory, and remove the least important facts beyond `budget` bytes. Return the
    text and what was removed. `before` is the memory without the update, and only cut to the budget itself.
    """
    known = {fact.key for fact in parse_facts(before)}

    def importance(fact: Fact) -> float:
        return fact_importance(fact, origins.get(fact.key), now) + (0.5 if fact.key not in known else 0.0)

    return fit_facts(merge_facts(text) if text != before else text, budget, importance)


def fact_importance(fact: Fact, origin: FactOrigin | None, now: datetime) -> float:
    """Rate a fact by what it says, who wrote it, and its age."""
    if origin is None:
        return fact_weight(fact) + _AUTHOR_WEIGHT[ChangedBy.HAND]
    days = max((now.timestamp() - _seconds(origin.change.at, now.timestamp())) / 86_400, 0.0)
    return fact_weight(fact) + _AUTHOR_WEIGHT.get(origin.change.by, 0.0) + 1.0 / (1.0 + days / _LONG_DAYS)


def is_forgotten(text: str, forgotten: Mapping[str, Revision], rows: Sequence[ChatMessage]) -> bool:
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
