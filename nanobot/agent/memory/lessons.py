"""Lessons: a tool failure of the same kind in three turns becomes a dated line in the owner's memory, and leaves after
60 days without it.

Failures are counted by tool, program and kind, a turn once. A line is built from our own words, an error name and the
program of the command; free text of an error is never stored. From the first untrusted content in a turn on nothing
counts, since it may have been written to be learned. A lesson is a fact with an id, an origin and a revision; once
forgotten by a person it is not learned again. No model is involved. Methods block.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nanobot.agent.memory.facts import Fact, add_fact, encode_escaped, parse_facts, remove_facts
from nanobot.agent.memory.revisions import ChangedBy, ChangeSource
from nanobot.agent.memory.schedule import Due, DueTimes
from nanobot.agent.memory.store import MemoryStore
from nanobot.errors import NanobotError
from nanobot.messages.types import ChatMessage, Provenance, ToolFailure, is_outside, is_synthetic, text_of
from nanobot.providers.base import parse_arguments
from nanobot.security.secrets import redact_known

log = logging.getLogger(__name__)

SECTION = "Lessons"
RECURRING = 3
"""Turns with the same failure that make a lesson."""
QUIET_DAYS = 60
"""Days without a failure after which its lesson leaves and its count starts from zero."""
MAX_LESSONS = 12
_EXAMINED_CHARS = 4_000
"""Characters examined: the end of a command's output, the start of other results."""
_PROGRAM = re.compile(
    r"\s*(?:cd\s+\S+\s*(?:&&|;)\s*)?(?:sudo\s+|\w+=\S*\s+)*(?:[\w.+-]*/)*([\w.+-]{1,40})(?:\s(?:[^;|&\n]|>&)*)?",
    re.ASCII,
)
"""A command of one program, and its name without the folder."""
_OWN = frozenset(
    {"read_file", "write_file", "edit_file", "list_dir", "glob", "grep", "notebook_edit", "web_fetch", "web_search"}
    | {"exec", "cron", "message", "spawn", "session_search", "inbox"}
)
_ERRORS = "ModuleNotFoundError|ImportError|PermissionError|UnicodeDecodeError|UnicodeEncodeError|ConnectionRefusedError"
_KINDS = tuple(
    (re.compile(pattern, re.DOTALL), kind)
    for pattern, kind in (
        (
            r".*?(?:^|[\s:])(?P<program>[\w.+-]{1,40}): (?:command )?not found\b.*\nExit code: 127\b[^\n]*$",
            "no such command",
        ),
        (
            r".*?[\s:](?:[\w.+-]*/)*(?P<program>[\w.+-]{1,40}): Permission denied\b.*\nExit code: 126\b[^\n]*$",
            "may not be run",
        ),
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
    """A kind of failed call, such as "exec `python`: no such command"."""

    text: str
    advice: str


@dataclass(eq=False)
class Lessons:
    """Learns from the tool failures of the owner's turns."""

    memory: MemoryStore
    """The owner's."""
    others_write: Callable[[str], bool] = lambda session_key: True
    """Whether people other than the owner may write in a session."""

    @property
    def _counts(self) -> DueTimes:
        """By failure: when it was last seen, in how many turns, and in the state `first` and its `lesson`."""
        return DueTimes(self.memory.database, "lesson")

    def learn(self, session_key: str, rows: Sequence[ChatMessage]) -> None:
        """Count the failures in the rows of a finished turn of the owner's, and drop old lessons. Never raises."""
        try:
            self._count(session_key, rows)
            self._drop_old()
        except NanobotError as error:
            log.warning("Failures of a turn could not be counted: %s", error)

    def _count(self, session_key: str, rows: Sequence[ChatMessage]) -> None:
        asked_by_person = any(row["role"] == "user" and row.get("provenance") == Provenance.PERSON for row in rows)
        alone = asked_by_person and not self.others_write(session_key)
        now = self.memory.clock.now()
        today = f"{now:%Y-%m-%d}"
        for failure in find_failures(rows, person_is_owner=alone):
            count = self._counts.get(failure.text)
            state = {"first": today, "lesson": ""} | count.state
            times = count.failures + 1
            if times >= RECURRING and not state["lesson"]:
                state["lesson"] = f"[{today}] {failure.text} ({times} times since {state['first']}){failure.advice}"
                self._add(state["lesson"], f"{failure.text} (", session_key)
            self._counts.put(failure.text, Due(now.timestamp(), times, state))

    def _drop_old(self) -> None:
        """Remove counts of failures that were not seen for `QUIET_DAYS`, and their lessons, which move to the archive
        unless a person has edited or pinned them.
        """
        oldest = self.memory.clock.now().timestamp() - QUIET_DAYS * 86_400
        for key, count in self._counts.all().items():
            if count.at < oldest:
                with self.memory.revisions.lock():
                    text, lessons = self._read()
                    if old := [fact for fact in lessons if fact.text == count.state["lesson"]]:
                        self._write(remove_facts(text, old), old)
                self._counts.delete(key)

    def _add(self, line: str, marker: str, session_key: str) -> None:
        """Add a lesson, unless one with this `marker` was forgotten or is there: killed before it was counted."""
        with self.memory.revisions.lock():
            text, lessons = self._read()
            known = [*self.memory.revisions.forgotten(), *(fact.text for fact in parse_facts(text))]
            if not any(marker in other for other in known):
                surplus = lessons[: max(len(lessons) + 1 - MAX_LESSONS, 0)]
                self._write(add_fact(remove_facts(text, surplus), SECTION, line), surplus, session_key)

    def _read(self) -> tuple[str, list[Fact]]:
        """Return the memory, and the lessons in it that nobody edited or pinned, oldest first."""
        text, origins = self.memory.file_text(self.memory.memory_file), self.memory.revisions.origins()
        facts = [fact for fact in parse_facts(text) if fact.heading == SECTION and not fact.pinned]
        return text, [fact for fact in facts if fact.key in origins and origins[fact.key].is_lesson]

    def _write(self, text: str, archived: Sequence[Fact], session_key: str = "") -> None:
        files, source = {self.memory.memory_file.name: encode_escaped(text)}, ChangeSource(session_key, "nanobot")
        self.memory.revisions.change(files, ChangedBy.LESSON, source, archived=archived)


def find_failures(rows: Sequence[ChatMessage], *, person_is_owner: bool = False) -> list[Failure]:
    """Return each kind of failure of a turn once, up to the first untrusted content. `person_is_owner`: no owner is
    configured and only one person writes, so that person is the owner.
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
    return [*failures]


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
        program = match.groupdict().get("program", "")
        if not program and (single := _PROGRAM.fullmatch(command)):
            program = single[1]
        if not program or program not in re.split(r"[^\w.+-]+", command):
            return None  # named by somebody else, or one of several commands
    what, semicolon, advice = kind.partition(";")
    subject = f"{tool} `{program}`" if program else tool
    return Failure(redact_known(f"{subject}: {what.format(*match.groups())}"), semicolon + advice)


def _is_untrusted(row: ChatMessage, *, person_is_owner: bool) -> bool:
    """Whether a row has content that is not the owner's. A model's reply to such content is untrusted, too."""
    provenance = row.get("provenance", Provenance.PERSON)
    if is_outside(row.get("context_provenance", Provenance.OWNER)):  # its runtime context was untrusted
        return True
    if row["role"] == "user" and not is_synthetic(row):
        return provenance != Provenance.OWNER and not (person_is_owner and provenance == Provenance.PERSON)
    return row["role"] == "tool" and is_outside(provenance)
