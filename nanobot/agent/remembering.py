"""What of a new memory is kept: each fact once, none that was forgotten, the most important ones where room is short.

Pure, but for the book it reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import log2

from nanobot.agent.facts import Fact, facts_in, merged, weight_of, with_item, within, without, words_of
from nanobot.agent.memory_book import By, MemoryBook, Origin, Source, is_lesson, is_like
from nanobot.messages.shown import shown_text
from nanobot.utils.clock import Clock

_LONG_DAYS = 60.0
_OF = {By.HAND: 3.0, By.SHARE: 3.0, By.AGENT: 1.5, By.LESSON: -10.0}
"""What it adds to a fact's importance who wrote it: what a person wrote by hand leaves last, a lesson before any."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A memory that may be kept, the facts that leave it for the archive, the keys of those that were said again."""

    text: str
    archived: Sequence[Fact] = ()
    mentioned: Sequence[str] = ()


def settled(update: str, before: str, book: MemoryBook, source: Source, budget: int, clock: Clock) -> Settled:
    """What is kept of an update. A memory that nothing was added to is only made to fit."""
    origins, now = book.origins(), clock.now()
    known = {fact.key for fact in facts_in(before)}
    text = merged(update) if update != before else update
    back = [fact for fact in facts_in(text) if fact.key not in known and _is_forgotten(fact, book, source)]
    if back:
        text = without(text, back)
    text = _with_lessons(text, before, origins)
    said = [words_of(shown_text(row)) for row in source.rows if row.get("role") == "user"]
    mentioned = [fact.key for fact in facts_in(text) if fact.key in known and _is_said(fact, said)]

    def importance(fact: Fact) -> float:
        again = fact.key in mentioned
        return importance_of(fact, origins.get(fact.key), now) + (0.5 if again or fact.key not in known else 0.0)

    text, gone = within(text, budget, importance)
    return Settled(text, gone, mentioned)


def _with_lessons(text: str, before: str, origins: Mapping[str, Origin]) -> str:
    """The text with the lessons that stood there before: when one leaves is not for a model to say."""
    stands = {fact.key for fact in facts_in(text)}
    for fact in facts_in(before):
        if is_lesson(origins.get(fact.key)) and fact.key not in stands:
            text = with_item(text, fact.heading, fact.text)
    return text


def importance_of(fact: Fact, origin: Origin | None, now: datetime) -> float:
    """How much a fact matters: what it says, who wrote it, how often it was said, how long ago."""
    if origin is None:
        return weight_of(fact) + _OF[By.HAND]
    days = max((now - _time(origin.change.at, now)).total_seconds() / 86_400, 0.0)
    recency = 1.0 / (1.0 + days / _LONG_DAYS)
    return weight_of(fact) + _OF.get(origin.change.by, 0.0) + log2(1 + origin.mentions) + recency


def _is_said(fact: Fact, said: Sequence[set[str]]) -> bool:
    words = words_of(fact.text)
    return bool(words) and any(len(words & one) >= 0.8 * len(words) for one in said)


def _is_forgotten(fact: Fact, book: MemoryBook, source: Source) -> bool:
    """Whether it was forgotten after the last time that a message spoke of it."""
    times = [at for text, at in book.forgotten() if is_like(fact.text, text)]
    if not times:
        return False
    words = words_of(fact.text)
    spoken = [
        str(row.get("timestamp"))
        for row in source.rows
        if row.get("role") == "user" and len(words & words_of(shown_text(row))) >= 0.5 * len(words)
    ]
    forgotten = max(_moment(at) for at in times)
    return not any(_moment(at) > forgotten for at in spoken)


def _moment(told: str) -> float:
    try:
        return datetime.fromisoformat(told).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _time(told: str, now: datetime) -> datetime:
    try:
        found = datetime.fromisoformat(told)
    except ValueError:
        return now
    return found if found.tzinfo is not None else found.replace(tzinfo=now.tzinfo)
