"""Editing a memory in place: what an edit does not name stays as it is, byte for byte.

`apply_edits` changes single facts. `merge_concurrent_changes` is a three-way merge. Pure, no I/O.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from nanobot.agent.memory.facts import (
    ITEM,
    Fact,
    add_fact,
    fact_key,
    fact_words,
    find_headings,
    parse_facts,
    section_end,
)

_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class FactEdit:
    """What becomes of the facts with these keys: `text` replaces the first of them, the others are removed.

    Without `text` all are removed, unless `under` is set: it names an existing heading that the text, or the first fact
    unchanged, moves to. Without keys `text` is added under that heading, which is created if necessary.
    """

    keys: tuple[str, ...] = ()
    text: str = ""
    under: str = ""


def apply_edits(text: str, edits: Sequence[FactEdit]) -> tuple[str, list[FactEdit]]:
    """Apply the edits one by one. Return the new text and the edits that were applied.

    An edit is skipped if one of its facts or its heading is missing, or if it would change how another fact is parsed.
    """
    mark, body = (_MARK, text[1:]) if text.startswith(_MARK) else ("", text)
    done = []
    for edit in edits:
        changed = _apply_edit(body, edit)
        if not edit.keys and changed is not None and not _keeps_other_facts(body, changed, edit):
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


def merge_concurrent_changes(base: str, update: str, current: str) -> tuple[str, list[str]]:
    """Apply the changes from `base` to `update` to `current`. Return the text, and the added lines that conflict with
    other changes of the same lines in `current`; these are left out.

    Lines are compared by their normalised words; the spelling of `current` wins.
    """
    old, new, current_lines = (text.splitlines(keepends=True) for text in (base, update, current))
    keys = [[fact_key(line) or line.strip() for line in lines] for lines in (old, new, current_lines)]
    unchanged = {
        block.a + at: block.b + at
        for block in SequenceMatcher(None, keys[0], keys[2], autojunk=False).get_matching_blocks()
        for at in range(block.size)
    }
    removed: set[int] = set()
    additions: list[tuple[int, range]] = []
    conflicts: list[str] = []
    for change, begin, end, first, last in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if change == "equal":
            continue
        if first < last and any(keys[0][at] and at not in unchanged for at in range(begin, end)):
            present = {*keys[2]}
            conflicts += [new[at].strip() for at in range(first, last) if keys[1][at] and keys[1][at] not in present]
            continue
        places = [unchanged[at] for at in range(begin, end) if at in unchanged]
        removed.update(places)
        place = places[0] if places else _position_after(unchanged, begin, len(current_lines))
        if not places and find_headings(new[first:last]):  # a new section must not split an existing one
            place = next((at for at, _ in find_headings(current_lines) if at >= place), len(current_lines))
        additions.append((place, range(first, last)))
    present = {key for at, key in enumerate(keys[2]) if at not in removed}
    added_at: dict[int, list[str]] = {}
    for place, line_numbers in additions:
        added_at.setdefault(place, []).extend(
            new[at] for at in line_numbers if not keys[1][at] or keys[1][at] not in present
        )
    lines = []
    for at in range(len(current_lines) + 1):
        lines += added_at.get(at, [])
        if at < len(current_lines) and at not in removed:
            lines.append(current_lines[at])
    return _join(lines), conflicts


def _apply_edit(text: str, edit: FactEdit) -> str | None:
    """Return the text with one edit; None if it cannot be applied."""
    if not edit.keys:
        return add_fact(text, edit.under, edit.text)
    lines = text.splitlines(keepends=True)
    named = [fact for fact in parse_facts(text) if fact.key in edit.keys]
    if {fact.key for fact in named} != set(edit.keys) or not named:
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
    return _join(kept)


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


def _position_after(unchanged: dict[int, int], base: int, end: int) -> int:
    """Return the line of `current` after the last unchanged line before `base`."""
    before = [unchanged[at] for at in unchanged if at < base]
    after = [unchanged[at] for at in unchanged if at >= base]
    return max(before) + 1 if before else min(after) if after else end


def _join(lines: Sequence[str]) -> str:
    """Join lines, ending each but the last with a newline."""
    return "".join(f"{line}\n" if line.splitlines() == [line] else line for line in lines[:-1]) + "".join(lines[-1:])
