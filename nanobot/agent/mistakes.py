"""What went wrong in a turn, in words of ours: failed calls by their kind, and what then worked instead.

Nothing of an error's free text is taken over. A failure has one of the shapes below, which are sentences of our own
tools, exit codes and the names of errors, or it is none; a program is named only by a word of the command itself. And
from where words from outside came into a turn on, nothing of it counts: somebody may have written them to be learned.
Pure: no disk here.
"""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nanobot.messages.types import ChatMessage, Provenance, ToolFailure, is_our_word, is_outside, text_of
from nanobot.security.vault import masked

_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./+-]{0,39}")
"""A program, or the path of one: nothing that reads like a sentence."""
_MOST_WORDS = 3
_LOOKED_AT = 4_000
"""Characters of a result, at the end where it tells how it ended."""
_BETWEEN = "();&|\n"
_REDIRECTED = re.compile(r"\d?>&\d|&>>?")
_BEFORE = frozenset({"sudo", "time", "nohup", "env", "exec"})
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
class Mistake:
    """A call that failed, as it can come back. Equal ones are the same mistake."""

    tool: str
    what: str
    program: str = ""
    advice: str = ""
    worked: str = ""
    """What stood in the place of the program when it went well."""

    @property
    def key(self) -> str:
        """What it is counted by."""
        return f"{self.tool}|{self.program}|{self.what}"

    @property
    def subject(self) -> str:
        """What failed."""
        return f"{self.tool} `{self.program}`" if self.program else self.tool


@dataclass(frozen=True, slots=True)
class TurnLooked:
    """A turn as it is learned from: what failed, and which tools and programs did what they should."""

    turn_id: str
    mistakes: Sequence[Mistake] = ()
    went_well: frozenset[tuple[str, str]] = frozenset()
    """Tools, each with a program of its command or none."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a failure looks. A group of the pattern takes its place in `what`; `program` is one, where it is named."""

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


def looked_at(
    rows: Sequence[ChatMessage], earlier: Sequence[ChatMessage] = (), *, person_is_owner: bool = False
) -> TurnLooked | None:
    """What the rows of one turn teach, as far as all words in it were the owner's or made here; None for nothing.

    A program that `earlier` words from outside have named is none of ours. `person_is_owner`: where nobody is known as
    the owner, and only one person writes, that is who they are.
    """
    if not rows or rows[0]["role"] != "user" or is_our_word(rows[0]):
        return None  # nobody knows who asked
    calls: dict[str, tuple[str, dict[str, Any]]] = {}
    done: list[tuple[str, str, Mistake | None]] = []
    for row in rows:
        if _is_from_outside(row, person_is_owner=person_is_owner):
            break
        for call in row.get("tool_calls", ()):
            calls[call["id"]] = (call["function"]["name"], _arguments(call["function"]["arguments"]))
        if row["role"] == "tool" and (call_of := calls.get(row.get("tool_call_id", ""))) and call_of[0] in _OWN:
            command = str(call_of[1].get("command", "")) if call_of[0] == "exec" else ""
            failed = "failure" in row
            mistake = _mistake_of(call_of[0], command, row) if failed else None
            if mistake is not None or not failed:
                done.append((call_of[0], command, mistake))
    if not done:
        return None
    outside = [row for row in earlier if _is_from_outside(row, person_is_owner=person_is_owner)]
    named = _words_of(outside) if any(mistake is not None for _, _, mistake in done) else frozenset()
    mistakes = [
        replace(mistake, worked=_what_worked(mistake, command, done[at + 1 :], named))
        for at, (_, command, mistake) in enumerate(done)
        if mistake is not None and mistake.program not in named
    ]
    well = frozenset(
        (tool, program)
        for tool, command, mistake in done
        if mistake is None
        for program in ("", *map(_base, _programs_in(command)))
    )
    return TurnLooked(str(rows[-1].get("turn_id", "")), mistakes, well)


def _mistake_of(tool: str, command: str, row: ChatMessage) -> Mistake | None:
    if row.get("failure") not in (ToolFailure.NOT_DONE, ToolFailure.ENDED_BADLY):
        return None
    text = text_of(row["content"])
    text = text[-_LOOKED_AT:] if tool == "exec" else text[:_LOOKED_AT]
    for shape in _SHAPES:
        found = shape.pattern.match(text) if tool in shape.tools else None
        if found is None:
            continue
        what = shape.what.format(*(_SYSTEM.get(one, one) for one in found.groups()))
        program = ""
        if tool == "exec":
            named = found.groupdict().get("program")
            if named:
                program = next((one for one in _programs_in(command) if _base(one) == _base(named)), "")
            elif programs := _programs_in(command, piped=False):
                program = programs[-1]  # where several are run, the last one says how it ended
            if not program:
                return None  # somebody else's word, or a command that only a shell understands
        return Mistake(tool, what, _base(program), shape.advice)
    return None


def _programs_in(command: str, *, piped: bool = True) -> list[str]:
    """The programs that a command names, in their order; of what no shell takes none. Without those `piped`, of a pipe
    only the first.
    """
    command = _REDIRECTED.sub(" ", command[:_LOOKED_AT].partition("<<")[0])
    words = shlex.shlex(command, posix=True, punctuation_chars=_BETWEEN)
    words.whitespace, words.commenters, words.whitespace_split = " \t\r", "", True
    found, begins = [], True
    try:
        for word in words:
            if set(word) <= set(_BETWEEN):
                begins = word != ")" and (piped or word not in ("|", "|&"))
            elif begins and "=" not in word and word not in _BEFORE:
                begins = False
                found += [word] if _NAME.fullmatch(word) and word != "cd" else []
    except ValueError:  # a quote that is not closed
        return []
    return found


def _base(program: str) -> str:
    return program.rpartition("/")[2]


def _is_from_outside(row: ChatMessage, *, person_is_owner: bool) -> bool:
    """Whether these are words of somebody who is not the owner. What a model said of such words may be any of them."""
    said = row.get("provenance", Provenance.PERSON)
    if is_outside(row.get("context_provenance", Provenance.OWNER)):  # what stood beside it was
        return True
    if row["role"] == "user" and not is_our_word(row):
        return said != Provenance.OWNER and not (person_is_owner and said == Provenance.PERSON)
    return row["role"] == "tool" and is_outside(said)


def _words_of(rows: Sequence[ChatMessage]) -> frozenset[str]:
    """Their words that could be a program."""
    texts = (f"{text_of(row['content'])}\n{row.get('runtime_context', '')}" for row in rows)
    return frozenset(_base(word.rstrip(".")) for text in texts for word in _NAME.findall(text))


def _what_worked(
    mistake: Mistake, command: str, later: Sequence[tuple[str, str, Mistake | None]], named: frozenset[str]
) -> str:
    """What stood in the place of the program in a later command that ends the same and went well; else nothing."""
    words = command.split()
    at = next((at for at, word in enumerate(words) if _base(word) == mistake.program), None)
    if not mistake.program or at is None or at + 1 == len(words):
        return ""
    rest = words[at + 1 :]
    for tool, other, failed in later:
        instead = other.split()
        same = _same_end(rest, instead)
        if tool != mistake.tool or failed is not None or same * 2 < len(rest):
            continue
        begin = next((n for n, (one, two) in enumerate(zip(words[:at], instead, strict=False)) if one != two), at)
        put = instead[begin : len(instead) - same]
        put = put[: len(put) - (len(rest) - same)] if same < len(rest) else put
        fits = all(_NAME.fullmatch(word) and _base(word) not in named for word in put)
        if put and len(put) <= _MOST_WORDS and fits and put != [words[at]]:
            return " ".join(put)
    return ""


def _same_end(one: Sequence[str], other: Sequence[str]) -> int:
    same = 0
    while same < min(len(one), len(other)) and one[-1 - same] == other[-1 - same]:
        same += 1
    return same


def _arguments(text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def lesson_of(mistake: Mistake, times: int, since: str, today: str) -> str:
    """A mistake as a line of memory."""
    then = f"what then worked: `{mistake.worked}`" if mistake.worked else mistake.advice
    line = f"[{today}] {mistake.subject}: {mistake.what} ({times} times since {since})"
    return masked(f"{line}; {then}" if then else line)


def mistakes_among(looked: TurnLooked) -> Iterator[tuple[Mistake, int]]:
    """Each mistake of the turn once, with how often it was made; with what worked, where that is known."""
    by_key: dict[str, list[Mistake]] = {}
    for one in looked.mistakes:
        by_key.setdefault(one.key, []).append(one)
    for same in by_key.values():
        yield next((one for one in same if one.worked), same[0]), len(same)
