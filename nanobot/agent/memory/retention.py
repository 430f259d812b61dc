"""Which facts of an updated memory are kept: each once, none that was forgotten, the most important if room is short.

Pure, except for reading the revisions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import log2

from nanobot.agent.memory.facts import (
    Fact,
    fact_weight,
    fact_words,
    fit_facts,
    merge_facts,
    parse_facts,
    remove_facts,
)
from nanobot.agent.memory.revisions import ChangedBy, ChangeSource, FactOrigin, RevisionLog, encodable, is_like
from nanobot.messages.shown import shown_text
from nanobot.utils.clock import Clock

_LONG_DAYS = 60.0
_AUTHOR_WEIGHT = {ChangedBy.HAND: 3.0, ChangedBy.SHARE: 3.0, ChangedBy.AGENT: 1.5, ChangedBy.LESSON: -10.0}
"""Importance by author: what a person wrote leaves last, a lesson first."""


@dataclass(frozen=True, slots=True)
class RetainedFacts:
    """The text to keep, the facts to archive, and the keys of facts that were stated again."""

    text: str
    archived: Sequence[Fact] = ()
    mentioned: Sequence[str] = ()


def apply_budget(
    update: str, before: str, revisions: RevisionLog, source: ChangeSource, budget: int, clock: Clock
) -> RetainedFacts:
    """Merge duplicates, drop forgotten facts, and archive the least important ones beyond `budget` bytes.

    An update without changes is only cut to the budget.
    """
    origins, now = revisions.origins(), clock.now()
    known = {fact.key for fact in parse_facts(before)}
    text = merge_facts(update) if update != before else update
    returning = [fact for fact in parse_facts(text) if fact.key not in known and _is_forgotten(fact, revisions, source)]
    if returning:
        text = remove_facts(text, returning)
    statements = [fact_words(shown_text(row)) for row in source.rows if row.get("role") == "user"]
    mentioned = [fact.key for fact in parse_facts(text) if fact.key in known and _is_stated(fact, statements)]

    def importance(fact: Fact) -> float:
        is_repeated = fact.key in mentioned
        return fact_importance(fact, origins.get(fact.key), now) + (
            0.5 if is_repeated or fact.key not in known else 0.0
        )

    text, archived = fit_facts(text, budget, importance)
    return RetainedFacts(text, archived, [encodable(key) for key in mentioned])


def fact_importance(fact: Fact, origin: FactOrigin | None, now: datetime) -> float:
    """Rate a fact by what it says, who wrote it, how often it was stated, and its age."""
    if origin is None:
        return fact_weight(fact) + _AUTHOR_WEIGHT[ChangedBy.HAND]
    days = max((now.timestamp() - _seconds(origin.change.at, now.timestamp())) / 86_400, 0.0)
    recency = 1.0 / (1.0 + days / _LONG_DAYS)
    return fact_weight(fact) + _AUTHOR_WEIGHT.get(origin.change.by, 0.0) + log2(1 + origin.mentions) + recency


def _is_stated(fact: Fact, statements: Sequence[set[str]]) -> bool:
    words = fact_words(fact.text)
    return bool(words) and any(len(words & statement) >= 0.8 * len(words) for statement in statements)


def _is_forgotten(fact: Fact, revisions: RevisionLog, source: ChangeSource) -> bool:
    """Whether it was forgotten after the last message about it."""
    times = [change.at for text, change in revisions.forgotten().items() if is_like(fact.text, text)]
    if not times:
        return False
    words = fact_words(fact.text)
    mentions = [
        str(row.get("timestamp"))
        for row in source.rows
        if row.get("role") == "user" and len(words & fact_words(shown_text(row))) >= 0.5 * len(words)
    ]
    forgotten = max(_seconds(at) for at in times)
    return not any(_seconds(at) > forgotten for at in mentions)


def _seconds(timestamp: str, default: float = 0.0) -> float:
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError, OSError):
        return default
