"""Editing a memory in place: what an edit does not name stays as it is, byte for byte. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nanobot.agent.memory.facts import (
    BOM,
    ITEM,
    Fact,
    add_fact,
    fact_key,
    fact_words,
    find_headings,
    parse_facts,
    section_end,
)
from nanobot.messages.types import Provenance


@dataclass(frozen=True, slots=True)
class FactEdit:
    """What becomes of the facts with these keys: `text` replaces the first of them, the others are removed.

    Without `text` all are removed, unless `under` is set: it names an existing heading that the text, or the first fact
    unchanged, moves to. Without keys `text` is added under that heading, which is created if necessary.
    """

    keys: tuple[str, ...] = ()
    text: str = ""
    under: str = ""
    is_archived: bool = False
    """Whether the removed facts go to the archive."""
    before: tuple[str, ...] = ()
    """Texts of the facts with these keys."""
    why: str = ""
    provenance: Provenance = Provenance.OWNER
    """The least trusted of its sources."""


def apply_edits(text: str, edits: Sequence[FactEdit], *, by_person: bool = False) -> tuple[str, list[FactEdit]]:
    """Apply the edits one by one. Return the new text and the edits that were applied.

    An edit is skipped if one of its facts or its heading is missing, if it would change how another fact is parsed, or
    if a fact is pinned, unless it comes from a person.
    """
    mark, body = (BOM, text[1:]) if text.startswith(BOM) else ("", text)
    done = []
    for edit in edits:
        changed = _apply_edit(body, edit, by_person=by_person)
        if changed is not None and not edit.keys and not _keeps_other_facts(body, changed, edit):
            changed = f"- {edit.text}\n\n{body}"  # a code block or comment before its place is not closed
        if changed is not None and _keeps_other_facts(body, changed, edit):
            body = changed
            done.append(edit)
    return mark + body, done


def edits_of_update(memory: str, update: str) -> list[FactEdit]:
    """Return the edits that lead from the facts of a memory to those of another text.

    A fact that came replaces the one that left with which it shares most words, at least half. Text that is no fact
    stays.
    """
    old = {fact.key: fact for fact in parse_facts(memory)}
    new = {fact.key: fact for fact in parse_facts(update)}
    left = {key: fact_words(fact.text) for key, fact in old.items() if key not in new}
    lines = update.splitlines()
    known = {name for _, name in find_headings(memory.splitlines())}
    headings = known | {name for at, name in find_headings(lines) if lines[at].lstrip().startswith("##")}
    edits = []
    for key, fact in new.items():
        under = fact.heading if fact.heading in headings else ""
        if key in old:
            if under and under != old[key].heading and under in known:
                edits.append(FactEdit((key,), under=under))
            continue
        words = fact_words(fact.text)
        shared = {other: len(words & others) / max(1, len(words), len(others)) for other, others in left.items()}
        nearest = max(shared, key=shared.__getitem__, default="")
        if nearest and shared[nearest] >= 0.5:
            del left[nearest]
            edits.append(FactEdit((nearest,), fact.text))
        else:
            edits.append(FactEdit((), fact.text, under))
    return [*edits, *(FactEdit((key,)) for key in left)]


def _apply_edit(text: str, edit: FactEdit, *, by_person: bool) -> str | None:
    """Return the text with one edit; None if it cannot be applied."""
    if not edit.keys:
        return add_fact(text, edit.under, edit.text)
    lines = text.splitlines(keepends=True)
    named = [fact for fact in parse_facts(text) if fact.key in edit.keys]
    if {fact.key for fact in named} != set(edit.keys) or (not by_person and any(fact.pinned for fact in named)):
        return None
    cut = {at for fact in named for at in range(fact.begin, fact.end)}
    first, place = named[0], named[0].begin
    new_lines = [_line_for(first, lines, edit.text)] if edit.text else []
    if edit.under:
        new_lines = new_lines or lines[first.begin : first.end]
        end = section_end(lines, edit.under, cut)
        if end is None:
            return None
        place = end
    kept: list[str] = []
    for at in range(len(lines) + 1):
        if at == place:
            kept += new_lines
        if at < len(lines) and at not in cut:
            kept.append(lines[at])
    return "".join(f"{line}\n" if line.splitlines() == [line] else line for line in kept[:-1]) + "".join(kept[-1:])


def _keeps_other_facts(before: str, after: str, edit: FactEdit) -> bool:
    """Whether all facts that the edit does not name are unchanged, and its new fact is there once."""
    expected = Counter(fact.key for fact in parse_facts(before) if fact.key not in edit.keys)
    actual = Counter(fact.key for fact in parse_facts(after) if fact.key not in edit.keys)
    key = fact_key(edit.text)
    if edit.text and key not in edit.keys:
        expected[key] += 1
    return actual == expected and actual[key] < 2


def _line_for(fact: Fact, lines: Sequence[str], text: str) -> str:
    """Format a new text like the line of the fact it replaces."""
    begin, last = lines[fact.begin], lines[fact.end - 1]
    item = ITEM.match(begin)
    lead = begin[: item.start(2)] if item else begin[: len(begin) - len(begin.lstrip())]
    return lead + text + last[len(last.rstrip("\r\n")) :]
