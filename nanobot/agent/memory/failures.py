"""Reviews a turn for tool failures: failed calls by kind, and what worked instead.

Free text of errors is never stored. A failure must match one of the patterns below: messages of our own tools, exit
codes and error names. A program is named only by a word of the command itself. From the first untrusted content in a
turn on nothing counts, since it may have been written to be learned. Pure, no I/O.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nanobot.messages.types import ChatMessage, Provenance, ToolFailure, is_outside, is_synthetic, text_of
from nanobot.providers.base import parse_arguments
from nanobot.security.redaction import redact_known

_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./+-]{0,39}")
"""A program or its path; nothing that could be a sentence."""
_MAX_REMEDY_WORDS = 3
_EXAMINED_CHARS = 4_000
"""Characters examined: the end of a command's output, the start of other results."""
_SEPARATORS = "();&|\n"
_REDIRECTED = re.compile(r"\d?>&\d|&>>?")
_WRAPPERS = frozenset({"sudo", "time", "nohup", "env", "exec"})
_OWN = frozenset(
    {"read_file", "write_file", "edit_file", "list_dir", "glob", "grep", "notebook_edit", "web_fetch", "web_search"}
    | {"exec", "cron", "message", "spawn", "session_search", "inbox"}
)
_ERRORS = "ModuleNotFoundError|ImportError|PermissionError|UnicodeDecodeError|UnicodeEncodeError|ConnectionRefusedError"
_SYSTEM = {
    "No space left on device": "ENOSPC, the disk is full",
    "Read-only file system": "EROFS, a read-only file system",
    "Operation not permitted": "EPERM, not permitted",
    "Permission denied": "EACCES, no permission",
    "Connection refused": "ECONNREFUSED, nobody answers there",
    "Network is unreachable": "ENETUNREACH, no network",
    "Could not resolve host": "a host name that cannot be found",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call. Equal failures have equal keys."""

    tool: str
    what: str
    program: str = ""
    advice: str = ""
    worked: str = ""
    """What replaced the program in a later command that worked."""

    @property
    def key(self) -> str:
        """The key it is counted under."""
        return f"{self.tool}|{self.program}|{self.what}"

    @property
    def subject(self) -> str:
        return f"{self.tool} `{self.program}`" if self.program else self.tool


@dataclass(frozen=True, slots=True)
class TurnReview:
    """What failed in a turn, and which tools and programs succeeded."""

    turn_id: str
    failures: Sequence[Failure] = ()
    succeeded: frozenset[tuple[str, str]] = frozenset()
    """Tools, each with a program of its command or an empty string."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a failure looks. The first group of the pattern is put into `what`; the group `program` names the program."""

    tools: frozenset[str]
    pattern: re.Pattern[str]
    what: str
    advice: str = ""


def _shape(tools: str, pattern: str, what: str, advice: str = "") -> _Shape:
    return _Shape(frozenset(tools.split()) or _OWN, re.compile(pattern, re.DOTALL), what, advice)


_SHAPES = (
    _shape("exec", r".*?(?:^|[\s:])(?P<program>[\w.+-]+): (?:command )?not found\b.*\nExit code: 127\b[^\n]*$",
           "no such command"),
    _shape("exec", r".*?[\s:](?P<program>[\w./+-]+): Permission denied\b.*\nExit code: 126\b[^\n]*$", "may not be run"),
    _shape("exec", r".*(?:^|\n)Timed out after [\d.]+ s: the command [^\n]*$", "ran into its time limit",
           "set timeout, or start it in the background"),
    _shape("exec", rf".*\n({_ERRORS})(?:: [^\n]*)?\n\nExit code: 1\b[^\n]*$", "{0}"),
    _shape("exec", rf".*({'|'.join(_SYSTEM)})[^\n]*\n\nExit code: [1-9]\d*\b[^\n]*$", "{0}"),
    _shape("edit_file", r"Error: old_text is not in ", "old_text was not in the file",
           "read the lines again just before the edit"),
    _shape("edit_file", r"Error: old_text is in .* \d+ times \(lines", "old_text stood in the file several times",
           "take in more of the text around it"),
    _shape("read_file edit_file list_dir", r"Error: There is no [^\n]+", "a path that does not exist",
           "look with list_dir or glob first"),
    _shape("write_file edit_file notebook_edit", r"Error: \w+ said that all went well, but read back,",
           "what was written was not as meant", "look at the file after it"),
    _shape("", r"Error: No permission for ", "EACCES, no permission"),
    _shape("", r"Error: The disk is full: ", "ENOSPC, the disk is full"),
    _shape("", r"Error: \w+ was not run\. (\w{1,30}) is required\b", "called without `{0}`"),
    _shape("", r"Error: \w+ failed with (\w{1,40}(?:Error|Exception)): ", "{0}"),
)  # fmt: skip


def review_turn(
    rows: Sequence[ChatMessage], earlier: Sequence[ChatMessage] = (), *, person_is_owner: bool = False
) -> TurnReview | None:
    """Review the rows of one turn up to the first untrusted content; None if nothing was learned.

    Programs named in untrusted rows of `earlier` are ignored. `person_is_owner`: no owner is configured and only one
    person writes, so that person is the owner.
    """
    if not rows or rows[0]["role"] != "user" or is_synthetic(rows[0]):
        return None  # unknown who asked
    calls: dict[str, tuple[str, dict[str, Any]]] = {}
    done: list[tuple[str, str, Failure | None]] = []
    for row in rows:
        if _is_untrusted(row, person_is_owner=person_is_owner):
            break
        for call in row.get("tool_calls", ()):
            calls[call["id"]] = (call["function"]["name"], parse_arguments(call["function"]["arguments"])[0])
        if row["role"] == "tool" and (known_call := calls.get(row.get("tool_call_id", ""))) and known_call[0] in _OWN:
            command = str(known_call[1].get("command", "")) if known_call[0] == "exec" else ""
            failed = "failure" in row
            failure = _match_failure(known_call[0], command, row) if failed else None
            if failure is not None or not failed:
                done.append((known_call[0], command, failure))
    if not done:
        return None
    untrusted = [row for row in earlier if _is_untrusted(row, person_is_owner=person_is_owner)]
    named_by_others = _words_of(untrusted) if any(failure is not None for _, _, failure in done) else frozenset()
    failures = [
        replace(failure, worked=_find_remedy(failure, command, done[at + 1 :], named_by_others))
        for at, (_, command, failure) in enumerate(done)
        if failure is not None and failure.program not in named_by_others
    ]
    succeeded = frozenset(
        (tool, program)
        for tool, command, failure in done
        if failure is None
        for program in ("", *map(_base, _programs_in(command)))
    )
    return TurnReview(str(rows[-1].get("turn_id", "")), failures, succeeded)


def _match_failure(tool: str, command: str, row: ChatMessage) -> Failure | None:
    if row.get("failure") not in (ToolFailure.NOT_DONE, ToolFailure.ENDED_BADLY):
        return None
    text = text_of(row["content"])
    text = text[-_EXAMINED_CHARS:] if tool == "exec" else text[:_EXAMINED_CHARS]
    for shape in _SHAPES:
        match = shape.pattern.match(text) if tool in shape.tools else None
        if match is None:
            continue
        what = shape.what.format(*(_SYSTEM.get(group, group) for group in match.groups()))
        program = ""
        if tool == "exec":
            name = match.groupdict().get("program")
            if name:
                program = next((path for path in _programs_in(command) if _base(path) == _base(name)), "")
            elif programs := _programs_in(command, piped=False):
                program = programs[-1]  # of several commands, the last one sets the exit code
            if not program:
                return None  # named by somebody else, or a command that only a shell can parse
        return Failure(tool, what, _base(program), shape.advice)
    return None


def _programs_in(command: str, *, piped: bool = True) -> list[str]:
    """Return the programs that a command names, in order; empty if it cannot be parsed. Without `piped`, only the first
    of each pipe.
    """
    command = _REDIRECTED.sub(" ", command[:_EXAMINED_CHARS].partition("<<")[0])
    words = shlex.shlex(command, posix=True, punctuation_chars=_SEPARATORS)
    words.whitespace, words.commenters, words.whitespace_split = " \t\r", "", True
    programs, begins = [], True
    try:
        for word in words:
            if set(word) <= set(_SEPARATORS):
                begins = word != ")" and (piped or word not in ("|", "|&"))
            elif begins and "=" not in word and word not in _WRAPPERS:
                begins = False
                programs += [word] if _NAME.fullmatch(word) and word != "cd" else []
    except ValueError:  # a quote that is not closed
        return []
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


def _words_of(rows: Sequence[ChatMessage]) -> frozenset[str]:
    """Return the words of these rows that could be a program."""
    texts = (f"{text_of(row['content'])}\n{row.get('runtime_context', '')}" for row in rows)
    return frozenset(_base(word.rstrip(".")) for text in texts for word in _NAME.findall(text))


def _find_remedy(
    failure: Failure, command: str, later: Sequence[tuple[str, str, Failure | None]], named_by_others: frozenset[str]
) -> str:
    """Return what replaced the program in a later command with the same end that worked; empty if there is none."""
    words = command.split()
    at = next((at for at, word in enumerate(words) if _base(word) == failure.program), None)
    if not failure.program or at is None or at + 1 == len(words):
        return ""
    rest = words[at + 1 :]
    for tool, later_command, later_failure in later:
        later_words = later_command.split()
        same = _same_end(rest, later_words)
        if tool != failure.tool or later_failure is not None or same * 2 < len(rest):
            continue
        pairs = enumerate(zip(words[:at], later_words, strict=False))
        begin = next((index for index, (word, later_word) in pairs if word != later_word), at)
        replacement = later_words[begin : len(later_words) - same]
        replacement = replacement[: len(replacement) - (len(rest) - same)] if same < len(rest) else replacement
        fits = all(_NAME.fullmatch(word) and _base(word) not in named_by_others for word in replacement)
        if replacement and len(replacement) <= _MAX_REMEDY_WORDS and fits and replacement != [words[at]]:
            return " ".join(replacement)
    return ""


def _same_end(words: Sequence[str], other: Sequence[str]) -> int:
    same = 0
    while same < min(len(words), len(other)) and words[-1 - same] == other[-1 - same]:
        same += 1
    return same


def format_lesson(failure: Failure, times: int, since: str, today: str) -> str:
    """Format a failure as a line of memory."""
    remedy = f"what then worked: `{failure.worked}`" if failure.worked else failure.advice
    line = f"[{today}] {failure.subject}: {failure.what} ({times} times since {since})"
    return redact_known(f"{line}; {remedy}" if remedy else line)


def extract_failures(review: TurnReview) -> Iterator[tuple[Failure, int]]:
    """Yield each failure of the turn once, with its count; preferably one with a known remedy."""
    by_key: dict[str, list[Failure]] = {}
    for failure in review.failures:
        by_key.setdefault(failure.key, []).append(failure)
    for failures in by_key.values():
        yield next((failure for failure in failures if failure.worked), failures[0]), len(failures)
