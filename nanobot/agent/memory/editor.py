"""What a person can do with a memory: list, search, explain, forget, pin and share facts, undo changes; also by the
commands `/memory` and `/dream`.

Every change is a revision and can be undone byte for byte. Methods of the editor block on the disk and raise
NanobotError with the next step.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.agent.command import TYPED, CommandCall, is_from_owner
from nanobot.agent.memory.edits import FactEdit, apply_edits, edits_of_update
from nanobot.agent.memory.facts import (
    PIN,
    Fact,
    decode_escaped,
    encode_escaped,
    fact_id,
    fact_key,
    fact_words,
    parse_facts,
    remove_facts,
    set_pinned,
)
from nanobot.agent.memory.revisions import ChangedBy, ChangeSource, FactOrigin, Revision, encodable, is_like
from nanobot.agent.memory.save_memory import fact_importance
from nanobot.agent.memory.store import MemoryStore
from nanobot.errors import NanobotError
from nanobot.utils.text import clip_line, count_noun, format_when, json_objects

if TYPE_CHECKING:
    from nanobot.agent.memory.dream_schedule import DreamScheduler

_SHOWN_CHARS = 80
_MAX_CHOICES = 8
_HOW = {
    ChangedBy.CONSOLIDATION: "from a conversation",
    ChangedBy.AGENT: "written by the agent",
    ChangedBy.HAND: "written by hand, or before revisions were recorded",
    ChangedBy.SHARE: "shared by the owner",
    ChangedBy.EDIT: "edited",
    ChangedBy.PIN: "pinned",
    ChangedBy.LESSON: "learned from a recurring failure",
    ChangedBy.UNDO: "restored",
    ChangedBy.FORGET: "kept when something else was forgotten",
    ChangedBy.RESET: "kept after a reset",
    ChangedBy.DREAM: "merged from earlier facts by Dream",
    ChangedBy.RESTORE: "restored",
}
_MAX_LOG = 15
_MAX_PASSES = 20
_MAX_MATCHES = 20
_USAGE = (
    "/memory lists what is remembered here. /memory why ID-or-TEXT shows where a fact came from, /memory forget "
    "ID-or-TEXT removes it, /memory pin ID-or-TEXT keeps it as it is (/memory unpin), /memory undo reverts the last "
    "change, /memory search TEXT and /memory log show more, and "
    "/memory share ID shares a fact with every chat (the owner's memory, owner only)."
)

_AFTER_FORGET = """\
New conversations will not use it. This one may still mention it until /new; it also remains in HISTORY.md and in past \
messages, where a search finds it. /memory undo restores it."""


@dataclass(frozen=True, slots=True)
class FactDetails:
    """A fact with its origin. `file` is where it is stored; empty if it was removed."""

    fact: Fact
    file: str
    origin: FactOrigin | None
    importance: float

    def to_json(self) -> dict[str, Any]:
        """The fact for programs; docs/guides/memory.md documents the fields."""
        source = dict(self.origin.details) if self.origin is not None else {}
        return {
            "id": self.fact.id,
            "text": self.fact.text,
            "file": self.file,
            "heading": self.fact.heading,
            "pinned": self.fact.pinned,
            "since": self.origin.change.at if self.origin is not None else None,
            "by": self.origin.change.by if self.origin is not None else None,
            "source": {name: value for name, value in source.items() if name not in ("key", "text")},
            "importance": round(self.importance, 2),
        }

    def explain(self, now: datetime) -> Iterator[str]:
        """Yield the lines of the answer to why it is remembered."""
        yield f"{self.fact.id}  {self.fact.text}"
        if not self.file:
            yield "  It is no longer in memory."
        if self.origin is None:
            yield "  Its origin was not recorded."
            return
        change, details = self.origin.change, self.origin.details
        session = f" {details['session']}" if details.get("session") else ""
        turn = f", turn {details['turn']}" if details.get("turn") else ""
        yield f"  Since {_format_when(change.at, now)}, {_HOW[change.by]}{session}{turn}."
        if details.get("quote"):
            said_at = str(details.get("said_at", ""))[:16].replace("T", " ")
            yield f"  {said_at} {details.get('who', '')}: {details['quote']}"
        elif details.get("who"):
            yield f"  By {details['who']}."
        if details.get("provenance"):
            yield f"  The words were not the owner's own ({details['provenance']})."
        words = fact_words(self.fact.text)
        for text in change.removed:
            if len(words & fact_words(text)) * 3 >= len(words):
                yield f"  It replaced: {clip_line(text, _SHOWN_CHARS)}"
        yield f"  Importance: {self.importance:.1f}."


@dataclass(frozen=True, slots=True)
class FactMatch:
    """A line that matches a search."""

    file: str
    line: int
    text: str


class MemoryEditor:
    """Edits the memory of one scope on behalf of a person, `who`."""

    def __init__(self, memory: MemoryStore, who: str = "terminal") -> None:
        self._memory = memory
        self.revisions = memory.revisions
        self.clock = memory.clock
        self.who = who

    def facts(self, *, archived: bool = False) -> list[FactDetails]:
        """Return the facts that are in every prompt, in file order; with `archived` also those of the archive."""
        self.revisions.record()
        origins, now = self.revisions.origins(), self.clock.now()
        return [
            FactDetails(fact, path.name, origin, fact_importance(fact, origin, now))
            for path in [*self._files, *([self._memory.archive_file] if archived else [])]
            for fact in parse_facts(self._memory.file_text(path))
            for origin in (origins.get(fact.key),)
        ]

    def state(self) -> str:
        """Return size, budget and number of facts in a line."""
        text = self._memory.read_long_term()
        size, budget = len(text.encode()), self._memory.budget_bytes
        return f"{size / 1024:.1f} of {budget / 1024:.1f} KB, {count_noun(len(parse_facts(text)), 'fact')}"

    def find(self, wanted: str) -> list[FactDetails]:
        """Return facts by id or by words, also removed ones. Raises NanobotError if there is none."""
        if not (matches := _matching(wanted, self.facts())):
            former = {Fact(str(was.details["text"]), key, 0, 0): was for key, was in self.revisions.origins().items()}
            now = self.clock.now()
            matches = _matching(
                wanted, [FactDetails(fact, "", was, fact_importance(fact, was, now)) for fact, was in former.items()]
            )
        if not matches:
            raise _no_match_error(wanted)
        return matches[:_MAX_CHOICES]

    def why(self, wanted: str) -> str:
        """Explain where facts came from, by id or by words. Also finds removed facts."""
        return "\n\n".join("\n".join(known.explain(self.clock.now())) for known in self.find(wanted))

    def forget(self, wanted: str) -> list[Fact]:
        """Remove a fact by id or words, also from the archive. It is not learned again from older messages."""
        with self.revisions.lock():
            key = self._one(wanted, archived=True).key
            removed = [known.fact for known in self.facts(archived=True) if known.fact.key == key]
            if any(fact.pinned for fact in removed):
                id_ = removed[0].id
                raise NanobotError(
                    f"It is pinned. Unpin it first: /memory unpin {id_}, or `nanobot memory unpin {id_}` in a terminal."
                )
            forgot = [*dict.fromkeys(encodable(fact.text) for fact in removed)]
            self._edit(self._memory.fact_files.values(), _change_of(FactEdit((key,))), ChangedBy.FORGET, forgot=forgot)
            return removed[:1]

    def share(self, wanted: str) -> Fact:
        """Add a fact to the memory that every chat sees."""
        with self.revisions.lock():
            fact = self._one(wanted)
            if not self._edit([self._memory.shared_file], _change_of(FactEdit(text=fact.text)), ChangedBy.SHARE):
                raise NanobotError("It is already shared.")
            return fact

    def pin(self, wanted: str, *, pinned: bool = True) -> Fact:
        """Pin or unpin a fact. A pinned fact is not changed or removed by consolidation, Dream or the size limit."""
        with self.revisions.lock():
            fact = self._one(wanted)
            if not self._edit(self._files, lambda text: set_pinned(text, {fact.key}, pinned=pinned), ChangedBy.PIN):
                raise NanobotError("It is pinned already." if pinned else "It is not pinned.")
            return fact

    def edit(self, wanted: str, text: str) -> Fact:
        """Change the words of a fact, pinned or not, and return the new one."""
        text = " ".join(text.split())
        if not (new := parse_facts(f"- {text}\n")):
            raise NanobotError("That is no fact: write it in words. To remove it, forget it.")
        with self.revisions.lock():
            old = self._one(wanted)
            edit = FactEdit((old.key,), f"{text} {PIN}" if old.pinned else text)
            if not self._edit(self._files, _change_of(edit), ChangedBy.EDIT) and new[0].text != old.text:
                raise NanobotError("Another fact already says that.")
            return new[0]

    def clear(self) -> list[str]:
        """Remove this scope's memory from prompts. Return the names of what was cleared.

        Facts stay in the revisions, today's notes in a renamed file. Dream does not look at the log of before it.
        """
        memory = self._memory
        with self.revisions.lock():
            self.revisions.record()
            cleared = [file.name for file in self._files if memory.file_bytes(file)]
            unchanged = {memory.memory_file.name: memory.file_bytes(memory.memory_file)}
            files = dict.fromkeys(cleared) or unchanged
            source = ChangeSource(who=self.who)
            self.revisions.change(files, ChangedBy.RESET, source, log_read=memory.log_size)
            if (notes := memory.read_today().strip()) and memory.archive_today():
                cleared.append(f"today's notes ({count_noun(len(notes.splitlines()), 'line')})")
            return cleared

    def undo(self, may: Callable[[Revision], bool] = lambda change: True) -> list[Revision]:
        """Undo the last change and return it. Unrecorded edits by hand are recorded first, as a change of their own.

        `may` decides whether this person may undo a revision.
        """
        with self.revisions.lock():
            self.revisions.record()
            group = self.revisions.last_undoable()
            if not group:
                raise NanobotError("There is no change to undo.")
            if not all(map(may, group)):
                raise NanobotError("Somebody else made the last change; only an owner may undo it.")
            self._take_back(group, ChangedBy.UNDO)
            return group

    def restore(self, number: int | None = None, may: Callable[[Revision], bool] = lambda change: True) -> int:
        """Restore the memory to before a Dream pass (by default the last), undoing later passes too. Return the number
        of the pass.

        Changes by others since then stay. If they cannot be separated from what a pass wrote, nothing is changed.
        `may` decides whether this person may undo a revision.
        """
        memory, log = self._memory, self.revisions
        with log.lock():
            log.record()
            active = log.active_passes()
            if number is None:
                number = next(iter(active), None)
            if number is None or number not in active:
                known = ", ".join(map(str, [*active][:10]))
                raise NanobotError(
                    f"Dream pass {number} cannot be restored. These can: {known}."
                    if active
                    else "There is no Dream pass to restore."
                )
            restored = [change for later, group in active.items() if later >= number for change in log.group(group)]
            if not all(map(may, restored)):
                raise NanobotError("Somebody else started that pass; only an owner may restore it.")
            if memory.file_bytes(memory.memory_file) is None:
                raise NanobotError("The memory was cleared after that pass. Bring it back first with /memory undo.")
            # what was forgotten since stays forgotten, with the facts that the passes had merged into it
            forgot = [text for text, change in log.forgotten().items() if change.group > active[number]]
            for edit in [edit for change in restored if change.dream for edit in change.dream.edits]:
                if edit.after and any(is_like(edit.after, text) for text in forgot):
                    forgot += edit.before
            self._take_back(restored, ChangedBy.RESTORE, forgot)
            return number

    def _take_back(self, changes: Sequence[Revision], by: ChangedBy, forgot: Sequence[str] = ()) -> None:
        """Take back these changes, newest first, keeping what others changed since. Facts that are like those in
        `forgot` do not return. Raises NanobotError on a conflict.
        """
        memory, log = self._memory, self.revisions
        files = {change.file: memory.file_bytes(memory.fact_files[change.file]) for change in changes}
        known = {fact.key for fact in parse_facts(memory.file_text(memory.memory_file))}
        for change in sorted(changes, key=lambda change: -change.number):
            before, after = log.texts(change)
            data = files[change.file]
            files[change.file] = before if data == after else _take_back_facts(after, before, data)
        if forgot and (data := files.get(memory.memory_file.name)) is not None:
            text = decode_escaped(data)
            new = [fact for fact in parse_facts(text) if fact.key not in known]
            returning = [fact for fact in new if any(is_like(fact.text, other) for other in forgot)]
            files[memory.memory_file.name] = encode_escaped(remove_facts(text, returning))
        undoes = sorted({change.group for change in changes}, reverse=True)
        log.change(files, by, ChangeSource(who=self.who), undoes=undoes)

    def search(self, text: str) -> list[FactMatch]:
        """Return the lines of all memory files that contain all these words, ignoring case."""
        wanted, memory = text.casefold().split(), self._memory
        folder = memory.memory_dir
        logs = [memory.archive_file, memory.history_file, folder / "history.jsonl"]
        notes = sorted([*folder.glob("????-??-??.md"), *folder.glob("????-??.md")], reverse=True)
        matches = []
        for path in dict.fromkeys([*self._files, *logs, *notes]):
            for number, line in enumerate(memory.file_text(path).splitlines(), 1):
                shown = line
                if path.suffix == ".jsonl":
                    shown = "".join(str(row.get("content") or "") for row in json_objects(encode_escaped(line)))
                if wanted and all(word in shown.casefold() for word in wanted):
                    matches.append(FactMatch(path.name, number, shown.strip()))
        return matches

    def log(self) -> list[Revision]:
        """Return all changes, newest first."""
        self.revisions.record()
        return [change for change in reversed(self.revisions.changes()) if change.is_change or change.undoes]

    def _one(self, wanted: str, *, archived: bool = False) -> Fact:
        """Return the fact that matches. Raises NanobotError if none does or several do."""
        matches = _matching(wanted, self.facts(archived=archived))
        if not matches:
            raise _no_match_error(wanted)
        if len({known.fact.key for known in matches}) > 1:
            lines = [f"{match.fact.id}  {clip_line(match.fact.text, _SHOWN_CHARS)}" for match in matches]
            raise NanobotError("\n".join(["Several facts match. Name one by its id:", *lines[:_MAX_CHOICES]]))
        return matches[0].fact

    @property
    def _files(self) -> list[Path]:
        """The files in this scope's prompts that a person of the scope may change."""
        return [file for file in reversed(self._memory.fact_files.values()) if file != self._memory.archive_file]

    def _edit(
        self, paths: Iterable[Path], edit: Callable[[str], str | None], by: ChangedBy, **details: Any
    ) -> list[str]:
        """Edit the texts of files as one action; None removes a file. Return the names of the files that changed."""
        files: dict[str, bytes | None] = {}
        for path in paths:
            data = self._memory.file_bytes(path)
            old = decode_escaped(data) if data is not None else None
            new = edit(old or "")
            if new != old and (new or old):
                files[path.name] = encode_escaped(new) if new is not None else None
        if files:
            self.revisions.change(files, by, ChangeSource(who=self.who), **details)
        return [*files]


def _change_of(edit: FactEdit) -> Callable[[str], str]:
    """Return the function that applies this edit of a person to a text."""
    return lambda text: apply_edits(text, [edit], by_person=True)[0]


def format_change(change: Revision, now: datetime | None = None) -> str:
    """Format a revision as a line. Its age is that at `now`, by default the current time."""
    diff = [f"+ {clip_line(str(fact['text']), _SHOWN_CHARS)}" for fact in change.added]
    diff += [f"- {clip_line(text, _SHOWN_CHARS)}" for text in change.removed]
    shown = "; ".join(diff[:4]) + (f"; and {len(diff) - 4} more" if len(diff) > 4 else "")
    undone = f" of {', '.join(map(str, change.undoes))}" if change.undoes else ""
    who = f" ({change.who})" if change.who else ""
    other = "a fact was pinned or unpinned" if change.by is ChangedBy.PIN else "other text"
    shown = shown or ("initial content" if change.is_initial else other)
    return f"{change.number}  {_format_when(change.at, now)}  {change.by}{undone}{who} {change.file}: {shown}"


def _take_back_facts(after: bytes | None, before: bytes | None, current: bytes | None) -> bytes:
    """Take back, fact by fact, a change from `before` to `after` in a text that changed since. Raises NanobotError on a
    conflict.
    """
    old, new, text = map(decode_escaped, (before, after, current))
    known = {fact.key for fact in parse_facts(text)}
    edits = [
        edit
        for edit in edits_of_update(new, old)
        if fact_key(edit.text) not in known and (edit.text or known.intersection(edit.keys))
    ]
    result, done = apply_edits(text, edits, by_person=True)
    if conflicts := [edit.text for edit in edits if edit not in done]:
        lines = "\n".join(conflicts[:5])
        raise NanobotError(
            f"What was written in place of these facts was changed later and would be lost:\n{lines}\nTake that back "
            "first (/memory undo, or in an editor), then try again."
        )
    return encode_escaped(result)


def _matching(wanted: str, facts: Sequence[FactDetails]) -> list[FactDetails]:
    """Match by id, else by equal words, else by contained words."""
    wanted = wanted.strip().strip("[]")
    if not wanted:
        return []
    key, folded = fact_key(wanted), wanted.casefold()
    for matches in (
        lambda fact: fact.id == wanted.lower(),
        lambda fact: bool(key) and fact_id(fact.key) == fact_id(key),
        lambda fact: folded in fact.text.casefold(),
        lambda fact: all(word in fact.text.casefold() for word in folded.split()),
    ):
        if matching := [item for item in facts if matches(item.fact)]:
            return matching
    return []


def _no_match_error(wanted: str) -> NanobotError:
    listing = "/memory, or `nanobot memory show` in a terminal, lists them."
    return NanobotError(f"No fact has the id or the words {clip_line(wanted, _SHOWN_CHARS)!r}. {listing}")


def _format_when(timestamp: str, now: datetime | None) -> str:
    try:
        return format_when(datetime.fromisoformat(timestamp), now)
    except ValueError:
        return timestamp


# --- the commands


async def answer_command(name: str, call: CommandCall, memory: MemoryStore, dreams: "DreamScheduler") -> str:
    """Run `/memory`, `/dream`, `/dream-log` or `/dream-restore` and return the reply. Never raises."""
    word, _, rest = call.argument.partition(" ") if name == "memory" else ("", "", call.argument)
    is_change = name in ("dream", "dream-restore") or word.lower() in ("forget", "pin", "unpin", "undo", "share")
    if is_change and call.message.origin not in TYPED:
        return f"{f'/{name} {word}'.strip()} has to be typed by a person."
    who = call.message.sender_id or "terminal"
    if name == "dream":
        return (await dreams.run_now(call.scope, who))[1]
    editor = MemoryEditor(memory, who)
    try:
        if name == "memory":
            return await asyncio.to_thread(_answer_memory, editor, word.lower(), rest.strip(), call)
        return await asyncio.to_thread(_answer_dream, editor, name, rest.strip(), call)
    except NanobotError as error:
        return str(error)


def _answer_memory(editor: MemoryEditor, word: str, rest: str, call: CommandCall) -> str:
    now = editor.clock.now()
    match word:
        case "" | "list" | "show":
            facts = [item.fact for item in editor.facts()]
            lines = [f"{fact.id}  {clip_line(fact.text, 200)}{f' {PIN}' if fact.pinned else ''}" for fact in facts]
            return "\n".join([f"Memory: {editor.state()}", *lines])
        case "undo":
            undone = editor.undo(lambda change: _may_undo(change, editor, call))
            return "\n".join(["Undone:", *(format_change(change, now) for change in undone)])
        case "log":
            changes = editor.log()[:_MAX_LOG]
            return "\n".join(format_change(change, now) for change in changes) or "Nothing has changed yet."
        case "why" if rest:
            return editor.why(rest)
        case "search" if rest:
            matches = editor.search(rest)[:_MAX_MATCHES]
            lines = [f"{match.file}:{match.line}: {clip_line(match.text, 200)}" for match in matches]
            return "\n".join(lines) or "No matches."
        case "share" if rest:
            if not call.scope.is_owners:
                return "This chat's memory cannot be shared. The owner shares facts of their own, in their own chat."
            if not is_from_owner(call.message):
                return "Only an owner may share a fact."
            return f"Shared with every chat: {editor.share(rest).text}"
        case "pin" | "unpin" if rest:
            return f"{'Pinned' if word == 'pin' else 'Unpinned'}: {editor.pin(rest, pinned=word == 'pin').text}"
        case "forget" if rest:
            lines = [f"- {fact.text}" for fact in editor.forget(rest)]
            return "\n".join(["Forgotten:", *lines, _AFTER_FORGET])
    return _USAGE


def _answer_dream(editor: MemoryEditor, name: str, rest: str, call: CommandCall) -> str:
    if name == "dream-log":
        from nanobot.agent.memory.dream import format_log  # only some commands need it

        if rest and not (rest.isdecimal() and int(rest)):
            return f"How many? For example /dream-log 5; {rest[:60]!r} is not a number."
        editor.revisions.record()
        return format_log(editor.revisions, min(int(rest or 3), _MAX_PASSES)) or "Dream has tidied nothing here yet."
    number = rest.lstrip("#")
    if number and not number.isdecimal():
        return f"Which pass? For example /dream-restore 3; {rest[:60]!r} is not one. /dream-log lists them."
    restored = editor.restore(int(number) if number else None, lambda change: _may_undo(change, editor, call))
    return (
        f"The memory is restored to before pass {restored}; other changes since then are kept. /memory undo takes "
        "this back."
    )


def _may_undo(change: Revision, editor: MemoryEditor, call: CommandCall) -> bool:
    """In a chat of several, a person may undo only their own changes."""
    return call.scope.is_owners or is_from_owner(call.message) or change.who == editor.who
