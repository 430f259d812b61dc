"""Lessons: a tool failure of the same kind in three turns becomes a dated line in the owner's memory, and leaves after
60 days without it.

Failures are counted by tool, program and kind, a turn once. A line is built from our own words, an error name and a
word of the command that looks like a program; free text of an error is never stored. From the first untrusted content
in a turn on nothing counts, since it may have been written to be learned. A lesson is a fact with an id, an origin and
a revision; once forgotten by a person it is not learned again. No model is involved. Methods block.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nanobot.agent.memory.due import Due, DueTimes
from nanobot.agent.memory.facts import Fact, add_fact, fact_key, parse_facts, remove_facts
from nanobot.agent.memory.revisions import ChangedBy, ChangeSource, is_lesson
from nanobot.agent.memory.store import MemoryStore
from nanobot.messages.types import ChatMessage, Provenance, ToolFailure, is_outside, is_synthetic, text_of
from nanobot.providers.base import parse_arguments
from nanobot.security.secrets import redact_known
from nanobot.utils.clock import Clock

SECTION = "Lessons"
RECURRING = 3
"""Turns with the same failure that make a lesson."""
QUIET_DAYS = 60
"""Days without a failure after which its lesson leaves and its count starts from zero."""
MAX_LESSONS = 12
MAX_COUNTED = 200
_EXAMINED_CHARS = 4_000
"""Characters examined: the end of a command's output, the start of other results."""
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./+-]{0,39}")
"""A program or its path; nothing that could be a sentence."""
_NOT_PROGRAMS = frozenset({"sudo", "time", "nohup", "env", "exec", "cd"})
_OWN = frozenset(
    {"read_file", "write_file", "edit_file", "list_dir", "glob", "grep", "notebook_edit", "web_fetch", "web_search"}
    | {"exec", "cron", "message", "spawn", "session_search", "inbox"}
)
_ERRORS = "ModuleNotFoundError|ImportError|PermissionError|UnicodeDecodeError|UnicodeEncodeError|ConnectionRefusedError"
_KINDS = tuple(
    (re.compile(pattern, re.DOTALL), kind)
    for pattern, kind in (
        (
            r".*?(?:^|[\s:])(?P<program>[\w.+-]+): (?:command )?not found\b.*\nExit code: 127\b[^\n]*$",
            "no such command",
        ),
        (r".*?[\s:](?P<program>[\w./+-]+): Permission denied\b.*\nExit code: 126\b[^\n]*$", "may not be run"),
        (r".*(?:^|\n)Timed out after [\d.]+ s: the command [^\n]*$", "ran into its time limit; set timeout"),
        (rf".*\n({_ERRORS})(?:: [^\n]*)?\n\nExit code: 1\b[^\n]*$", "{0}"),
        (r".*No space left on device[^\n]*\n\nExit code: [1-9]", "the disk is full"),
        (r".*Permission denied[^\n]*\n\nExit code: [1-9]", "no permission"),
        (r".*Connection refused[^\n]*\n\nExit code: [1-9]", "nobody answers there"),
        (r".*Could not resolve host[^\n]*\n\nExit code: [1-9]", "a host name that cannot be found"),
        (r"Error: old_text is not in ", "old_text was not in the file; read the lines again just before the edit"),
        (r"Error: old_text is in .* \d+ times \(lines", "old_text was in the file several times; include more lines"),
        (r"Error: There is no [^\n]+", "a path that does not exist; look with list_dir or glob first"),
        (r"Error: \w+ said that all went well, but read back,", "what was written was not as meant"),
        (r"Error: No permission for ", "no permission"),
        (r"Error: The disk is full: ", "the disk is full"),
        (r"Error: \w+ was not run\. (\w{1,30}) is required\b", "called without `{0}`"),
        (r"Error: \w+ failed with (\w{1,40}(?:Error|Exception)): ", "{0}"),
    )
)
"""How failures look, and what they are called. Those of a command end in its exit code."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A kind of failed call."""

    tool: str
    program: str
    what: str
    advice: str = ""

    @property
    def key(self) -> str:
        return f"{self.tool}|{self.program}|{self.what}"

    @property
    def text(self) -> str:
        subject = f"{self.tool} `{self.program}`" if self.program else self.tool
        return redact_known(f"{subject}: {self.what}")


class Lessons:
    """Learns from the tool failures of the owner's turns."""

    def __init__(
        self,
        memory: MemoryStore,
        database: Path,
        clock: Clock,
        *,
        others_write: Callable[[str], bool] = lambda session_key: True,
    ) -> None:
        """`memory` is the owner's; `database` has the counts. `others_write` tells whether people other than the owner
        may write in a session.
        """
        self._memory = memory
        self._counts = DueTimes(database, "lesson")
        """By failure: when it was last seen, in how many turns, and in the state `first`, `turns` and its `lesson`."""
        self._clock = clock
        self._others_write = others_write

    def learn(self, session_key: str, rows: Sequence[ChatMessage], earlier: Sequence[ChatMessage] = ()) -> None:
        """Count the failures of a finished turn of the owner's. `rows` are its rows, `earlier` those before.

        Raises NanobotError.
        """
        asked_by_person = any(row["role"] == "user" and row.get("provenance") == Provenance.PERSON for row in rows)
        alone = asked_by_person and not self._others_write(session_key)
        for failure in find_failures(rows, earlier, person_is_owner=alone):
            self._count(failure, session_key, str(rows[-1].get("turn_id", "")))

    def drop_old(self) -> None:
        """Remove lessons and counts of failures that were not seen for `QUIET_DAYS`. Raises NanobotError."""
        counts = self._counts.all()
        oldest = self._clock.now().timestamp() - QUIET_DAYS * 86_400
        excess = sorted(counts, key=lambda key: (bool(counts[key].state["lesson"]), counts[key].at))[:-MAX_COUNTED]
        for key, count in counts.items():
            if count.at < oldest or key in excess:
                if count.state["lesson"]:
                    self._remove_lesson(count.state["lesson"])
                self._counts.delete(key)

    def _count(self, failure: Failure, session_key: str, turn_id: str) -> None:
        now = self._clock.now()
        today = f"{now:%Y-%m-%d}"
        count = self._counts.get(failure.key)
        state = {"first": today, "turns": [], "lesson": ""} | count.state
        if turn_id in state["turns"]:
            return  # a resumed turn counts once
        count = Due(now.timestamp(), count.failures + 1, state | {"turns": [*state["turns"], turn_id][-RECURRING:]})
        if count.failures >= RECURRING and not state["lesson"]:
            line = f"[{today}] {failure.text} ({count.failures} times since {state['first']}){failure.advice}"
            lesson = self._add_lesson(line, f"{failure.text} (", session_key)
            count = replace(count, state=count.state | {"lesson": lesson})
        self._counts.put(failure.key, count)

    def _add_lesson(self, line: str, marker: str, session_key: str) -> str:
        """Add a lesson to memory. Return the line, also if it was learned before or forgotten; empty without room."""
        memory = self._memory
        with memory.revisions.lock():
            if any(marker in forgotten for forgotten, _ in memory.revisions.forgotten()):
                return line
            text = memory.file_text(memory.memory_file)
            existing = next((fact.text for fact in parse_facts(text) if marker in fact.text), "")
            if existing:  # killed before it was counted as learned, or the counts were lost
                return existing
            lessons = self._lessons_in(text)
            for evicted in range(max(len(lessons) + 1 - MAX_LESSONS, 0), len(lessons) + 1):
                data = add_fact(remove_facts(text, lessons[:evicted]), SECTION, line).encode("utf-8", "surrogateescape")
                if len(data) <= memory.budget_bytes:
                    source = ChangeSource(session=session_key, who="nanobot")
                    archived = lessons[:evicted]
                    memory.change(memory.memory_file, data, ChangedBy.LESSON, source, archived=archived)
                    return line
            return ""

    def _remove_lesson(self, line: str) -> None:
        """Move a lesson to the archive, unless a person has edited or pinned it."""
        memory = self._memory
        with memory.revisions.lock():
            text = memory.file_text(memory.memory_file)
            lesson = [fact for fact in self._lessons_in(text) if fact.key == fact_key(line)]
            if lesson:
                data = remove_facts(text, lesson).encode("utf-8", "surrogateescape")
                source = ChangeSource(who="nanobot")
                memory.change(memory.memory_file, data, ChangedBy.LESSON, source, archived=lesson)

    def _lessons_in(self, text: str) -> list[Fact]:
        """Return the lessons of a memory that nobody edited or pinned, oldest first."""
        origins = self._memory.revisions.origins()
        return [
            fact
            for fact in parse_facts(text)
            if fact.heading == SECTION and is_lesson(origins.get(fact.key)) and not fact.pinned
        ]


def find_failures(
    rows: Sequence[ChatMessage], earlier: Sequence[ChatMessage] = (), *, person_is_owner: bool = False
) -> list[Failure]:
    """Return each kind of failure of a turn once, up to the first untrusted content.

    Programs named in untrusted rows of `earlier` are ignored. `person_is_owner`: no owner is configured and only one
    person writes, so that person is the owner.
    """
    if not rows or rows[0]["role"] != "user" or is_synthetic(rows[0]):
        return []  # unknown who asked
    calls: dict[str, tuple[str, str]] = {}
    failures: dict[Failure, None] = {}
    for row in rows:
        if _is_untrusted(row, person_is_owner=person_is_owner):
            break
        for call in row.get("tool_calls", ()):
            arguments = parse_arguments(call["function"]["arguments"])[0]
            calls[call["id"]] = (call["function"]["name"], str(arguments.get("command", "")))
        tool, command = calls.get(row.get("tool_call_id", ""), ("", ""))
        if row["role"] == "tool" and tool in _OWN and (failure := _find_kind(tool, command, row)) is not None:
            failures[failure] = None
    untrusted = (row for row in earlier if _is_untrusted(row, person_is_owner=person_is_owner))
    texts = [f"{text_of(row['content'])}\n{row.get('runtime_context', '')}" for row in untrusted] if failures else []
    named_by_others = {_base(word.rstrip(".")) for text in texts for word in _NAME.findall(text)}
    return [failure for failure in failures if failure.program not in named_by_others]


def _find_kind(tool: str, command: str, row: ChatMessage) -> Failure | None:
    if row.get("failure") not in (ToolFailure.NOT_DONE, ToolFailure.ENDED_BADLY):
        return None
    text = text_of(row["content"])
    text = text[-_EXAMINED_CHARS:] if tool == "exec" else text[:_EXAMINED_CHARS]
    match, kind = next(((match, kind) for pattern, kind in _KINDS if (match := pattern.match(text))), (None, ""))
    if match is None:
        return None
    program = ""
    if tool == "exec":
        named, programs = match.groupdict().get("program"), _programs_in(command)
        program = next((name for name in programs if named is None or name == _base(named)), "")
        if not program:
            return None  # named by somebody else, or a command that only a shell can parse
    what, semicolon, advice = kind.partition(";")
    return Failure(tool, program, what.format(*match.groups()), semicolon + advice)


def _programs_in(command: str) -> list[str]:
    """Return the programs that a command names, the last one first: of several commands, it sets the exit code."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\d?>&\d", "''", command[:_EXAMINED_CHARS].partition("<<")[0])
    sequences = [re.split(r"[|()]+", part) for part in re.split(r"[;&\n]+", text)]
    programs = []
    for part in [pipe[0] for pipe in reversed(sequences)] + [part for pipe in sequences for part in pipe[1:]]:
        words = (word for word in part.split() if "=" not in word and word not in _NOT_PROGRAMS)
        if (word := next(words, "")) and _NAME.fullmatch(word) and part.split()[0] != "cd":
            programs.append(_base(word))
    return programs


def _base(program: str) -> str:
    return program.rpartition("/")[2]


def _is_untrusted(row: ChatMessage, *, person_is_owner: bool) -> bool:
    """Whether a row has content that is not the owner's. A model's reply to such content is untrusted, too."""
    provenance = row.get("provenance", Provenance.PERSON)
    if is_outside(row.get("context_provenance", Provenance.OWNER)):  # its runtime context was untrusted
        return True
    if row["role"] == "user" and not is_synthetic(row):
        return provenance != Provenance.OWNER and not (person_is_owner and provenance == Provenance.PERSON)
    return row["role"] == "tool" and is_outside(provenance)
