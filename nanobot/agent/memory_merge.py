"""Changing a memory without writing it anew: what no edit names stays as it is, byte for byte.

`edited` changes fact by fact, `carried_over` brings what was changed in one version of a text into another. Pure.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from nanobot.agent.facts import ITEM, Fact, facts_in, key_of

_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class FactEdit:
    """What becomes of these facts, by their keys: `text` takes the place of the first of them, and the others go.

    Without a text all of them go. `under` names a heading that is there: the text, or the first fact as it stands,
    goes there.
    """

    keys: tuple[str, ...]
    text: str = ""
    under: str = ""


def edited(text: str, edits: Sequence[FactEdit]) -> tuple[str, list[FactEdit]]:
    """The text with these edits, and those of them that could be made: all their facts stand there, and so does the
    heading. One by one; an edit after which a fact that it does not name would read otherwise is not made.
    """
    mark, body = (_MARK, text[1:]) if text.startswith(_MARK) else ("", text)
    done = []
    for edit in edits:
        changed = _with(body, edit)
        if changed is not None and _keeps_the_rest(body, changed, edit):
            body = changed
            done.append(edit)
    return mark + body, done


def headings_in(text: str) -> list[str]:
    """The headings under which facts may stand, in their order."""
    return list(dict.fromkeys(heading for _, heading in _headings(text.removeprefix(_MARK).splitlines())))


def carried_over(base: str, update: str, current: str) -> tuple[str, list[str]]:
    """What `update` changes of `base`, changed in `current`; and the lines it adds that have no place there, since
    `current` changes the same lines in another way: those stay as they are.

    Lines that say the same are one, however they are written; `current` decides how.
    """
    old, new, ours = (one.splitlines(keepends=True) for one in (base, update, current))
    told = [[_said(line) for line in lines] for lines in (old, new, ours)]
    stands = {
        block.a + at: block.b + at
        for block in SequenceMatcher(None, told[0], told[2], autojunk=False).get_matching_blocks()
        for at in range(block.size)
    }
    gone: set[int] = set()
    fresh: list[tuple[int, range]] = []
    homeless: list[str] = []
    for change, begin, end, first, last in SequenceMatcher(None, told[0], told[1], autojunk=False).get_opcodes():
        if change == "equal":
            continue
        if first < last and any(told[0][at] and at not in stands for at in range(begin, end)):
            there = {*told[2]}
            homeless += [new[at].strip() for at in range(first, last) if told[1][at] and told[1][at] not in there]
            continue
        places = [stands[at] for at in range(begin, end) if at in stands]
        gone.update(places)
        place = places[0] if places else _place_after(stands, begin, len(ours))
        if not places and _headings(new[first:last]):  # a section of its own, which takes no line of another with it
            place = next((at for at, _ in _headings(ours) if at >= place), len(ours))
        fresh.append((place, range(first, last)))
    there = {said for at, said in enumerate(told[2]) if at not in gone}
    come: dict[int, list[str]] = {}
    for place, added in fresh:
        come.setdefault(place, []).extend(new[at] for at in added if not told[1][at] or told[1][at] not in there)
    lines = []
    for at in range(len(ours) + 1):
        lines += come.get(at, [])
        if at < len(ours) and at not in gone:
            lines.append(ours[at])
    return _joined(lines), homeless


def _with(text: str, edit: FactEdit) -> str | None:
    """The text with one edit; None where it cannot be made."""
    lines = text.splitlines(keepends=True)
    named = [fact for fact in facts_in(text) if fact.key in edit.keys]
    if {fact.key for fact in named} != set(edit.keys) or not named:
        return None
    cut = {at for fact in named for at in range(fact.begin, fact.end)}
    first, place = named[0], named[0].begin
    fresh = [_line_for(first, lines, edit.text)] if edit.text else []
    if edit.under:
        fresh = fresh or lines[first.begin : first.end]
        found = _end_of(edit.under, lines, cut)
        if found is None:
            return None
        place = found
    kept: list[str] = []
    for at in range(len(lines) + 1):
        if at == place:
            kept += fresh
        if at < len(lines) and at not in cut:
            kept.append(lines[at])
    return _joined(kept)


def _keeps_the_rest(before: str, after: str, edit: FactEdit) -> bool:
    """Whether every fact that is not named is there as often as before, and the new one beside them once."""
    wanted = Counter(fact.key for fact in facts_in(before) if fact.key not in edit.keys)
    found = Counter(fact.key for fact in facts_in(after) if fact.key not in edit.keys)
    key = key_of(edit.text)
    if edit.text and key not in edit.keys:
        wanted[key] += 1
    return found == wanted and found[key] < 2


def _line_for(fact: Fact, lines: Sequence[str], text: str) -> str:
    """The text as a line in the manner of the fact whose place it takes."""
    begin, last = lines[fact.begin], lines[fact.end - 1]
    item = ITEM.match(begin)
    lead = begin[: item.start(2)] if item else begin[: len(begin) - len(begin.lstrip())]
    return lead + text + last[len(last.rstrip("\r\n")) :]


def _headings(lines: Sequence[str]) -> list[tuple[int, str]]:
    """The headings, each with its line; none of those inside code or a comment."""
    found, fenced, commented = [], False, False
    for at, line in enumerate(lines):
        bare = line.strip()
        if bare.startswith(("```", "~~~")):
            fenced = not fenced
        commented = not fenced and (commented or "<!--" in line)
        if commented:
            commented = "-->" not in line
        elif not fenced and bare.startswith("#") and bare.strip("# \t"):
            found.append((at, bare.strip("# \t")))
    return found


def _end_of(heading: str, lines: Sequence[str], cut: set[int]) -> int | None:
    """Where a fact is added under this heading: behind what stands there."""
    headings = _headings(lines)
    for number, (at, name) in enumerate(headings):
        if name == heading:
            end = headings[number + 1][0] if number + 1 < len(headings) else len(lines)
            filled = [one for one in range(at + 1, end) if lines[one].strip() and one not in cut]
            if filled:
                return filled[-1] + 1
            return at + 2 if at + 1 < end and not lines[at + 1].strip() else at + 1
    return None


def _place_after(stands: dict[int, int], base: int, end: int) -> int:
    """Where lines go that come before this line of the base: behind the last one before it that still stands."""
    before = [stands[at] for at in stands if at < base]
    after = [stands[at] for at in stands if at >= base]
    return max(before) + 1 if before else min(after) if after else end


def _said(line: str) -> str:
    return key_of(line) or line.strip()


def _joined(lines: Sequence[str]) -> str:
    """Each on a line of its own; the last may end as it likes."""
    return "".join(f"{line}\n" if _is_open(line) else line for line in lines[:-1]) + "".join(lines[-1:])


def _is_open(line: str) -> bool:
    """Whether nothing ends it."""
    return line.splitlines() == [line]
