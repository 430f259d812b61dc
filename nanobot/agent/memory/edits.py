"""Editing a memory in place: what an edit does not name stays as it is, byte for byte.

What a consolidation brings is stored by `store_edits`: no fact that was forgotten, and if room is short the most
important ones. All else is pure.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from nanobot.agent.memory.facts import (
    BOM,
    ITEM,
    Fact,
    add_fact,
    decode_escaped,
    encode_escaped,
    fact_key,
    fact_weight,
    fact_words,
    find_headings,
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
from nanobot.messages.types import ChatMessage, Provenance, shown_text

_LONG_DAYS = 60.0
_AUTHOR_WEIGHT = {ChangedBy.HAND: 3.0, ChangedBy.SHARE: 3.0, ChangedBy.AGENT: 1.5, ChangedBy.LESSON: -10.0}
"""Importance by author: what a person wrote leaves last, a lesson first."""


@dataclass(frozen=True, slots=True)
class FactEdit:
    """What becomes of the facts with these keys: `text` replaces the first of them, the others are removed.

    Without `text` all are removed, unless `under` is set: it names an existing heading that the text, or that of the
    first fact, moves to. Without keys `text` is added under that heading, which is created if necessary.
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
    named = [fact for fact in parse_facts(text) if fact.key in edit.keys]
    if {fact.key for fact in named} != set(edit.keys) or (not by_person and any(fact.pinned for fact in named)):
        return None
    first, lines = named[0], text.splitlines(keepends=True)
    if edit.under:
        is_known = any(name == edit.under for _, name in find_headings(lines))
        return add_fact(remove_facts(text, named), edit.under, edit.text or first.text) if is_known else None
    if not edit.text:
        return remove_facts(text, named)
    begin, last = lines[first.begin], lines[first.end - 1]  # the new line looks like the first one
    item = ITEM.match(begin)
    lead = begin[: item.start(2)] if item else begin[: len(begin) - len(begin.lstrip())]
    lines[first.begin] = lead + edit.text + last[len(last.rstrip("\r\n")) :]
    cut = {at for fact in named for at in range(fact.begin, fact.end)} - {first.begin}
    return "".join(line for at, line in enumerate(lines) if at not in cut)


def _keeps_other_facts(before: str, after: str, edit: FactEdit) -> bool:
    """Whether all facts that the edit does not name are unchanged, and its new fact is there once."""
    expected = Counter(fact.key for fact in parse_facts(before) if fact.key not in edit.keys)
    actual = Counter(fact.key for fact in parse_facts(after) if fact.key not in edit.keys)
    key = fact_key(edit.text)
    if edit.text and key not in edit.keys:
        expected[key] += 1
    return actual == expected and actual[key] < 2


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
