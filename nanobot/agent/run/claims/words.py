"""How a language claims that something was done: the shapes that `english` and `chinese` fill.

A deed is a kind of action, and there are tools that do it. Its verbs are plain words, and what must stand before and
behind them is said once a language: so that little has to be compiled, and only what an answer makes necessary.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

READING = frozenset({"read_file", "list_dir", "glob", "grep", "inbox", "session_search", "web_search", "web_fetch"})
_WRITING = frozenset({"write_file", "edit_file", "notebook_edit", "exec"})

DEEDS: dict[str, frozenset[str]] = {
    "write": _WRITING,
    "run": frozenset({"exec"}),
    "send": frozenset({"message", "tell", "exec"}),
    "schedule": _WRITING | {"cron"},
    "look": READING | {"exec"},
    "delete": _WRITING | {"cron"},
    "change": _WRITING,
    "delegate": frozenset({"spawn"}),
    "work": _WRITING | {"message", "cron", "spawn"},
}
"""A deed and the tools that can do it. "work" is any of them that is not only a look; a "change" is whatever was done
to a file in words that no other deed has."""

KNOWN_TOOLS = READING | _WRITING | {"message", "message_user", "tell", "spawn", "cron"}
LATER = frozenset({"spawn", "cron"})
"""Who called one of these may say that something will be done: it is on its way."""


class Wording:
    """A pattern, case ignored, compiled when it is first asked for: most answers need few of them."""

    __slots__ = ("_compiled", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._compiled: re.Pattern[str] | None = None

    @property
    def pattern(self) -> re.Pattern[str]:
        """The compiled pattern."""
        if self._compiled is None:
            self._compiled = re.compile(self._text, re.IGNORECASE)
        return self._compiled

    def found_in(self, text: str) -> bool:
        """Whether it occurs."""
        return self.pattern.search(text) is not None


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around a verb: `before` up to it, `behind` from it on."""

    before: Wording
    behind: Wording | None = None

    def fits(self, clause: str, start: int, end: int) -> bool:
        """Whether the words from `start` to `end` stand in it."""
        return self.before.found_in(clause[:start]) and (self.behind is None or self.behind.found_in(clause[end:]))


@dataclass(frozen=True, slots=True)
class Speech:
    """A way to speak of deeds: verbs with the deeds they may mean, and the frames that make a statement of them."""

    verbs: Mapping[str, frozenset[str]]
    frames: tuple[Frame, ...]
    parted: bool
    """Whether words are parted by spaces."""
    changes: re.Pattern[str] | None = None
    """Words like this are verbs too: of a change."""

    def deeds_in(self, clause: str) -> frozenset[str]:
        """The deeds this clause states."""
        return frozenset().union(
            *(
                self.verbs.get(verb.lower(), _CHANGE)
                for start, verb in self._verbs_in(clause)
                if any(frame.fits(clause, start, start + len(verb)) for frame in self.frames)
            )
        )

    def _verbs_in(self, clause: str) -> Iterator[tuple[int, str]]:
        if self.parted:
            words = [*_WORD.finditer(clause)]
            spans = [(word.start(), last.end()) for i, word in enumerate(words) for last in reversed(words[i : i + 2])]
        else:
            spans = [(start, start + size) for start in range(len(clause)) for size in (3, 2, 1)]
        reached = 0
        for start, end in spans:
            if start >= reached and self._is_verb(clause[start:end].lower()):
                reached = end
                yield start, clause[start:end]

    def _is_verb(self, word: str) -> bool:
        return word in self.verbs or (self.changes is not None and self.changes.fullmatch(word) is not None)


_CHANGE = frozenset({"change"})
_WORD = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)?")


@dataclass(frozen=True, slots=True)
class Language:
    """How a language claims and promises, and what takes a claim back."""

    says_done: tuple[Speech, ...]
    """A clause in which the speaker says to have done it."""
    is_done: tuple[Speech, ...]
    """A clause that says it is done, not by whom: believed to be a claim where it was asked for."""
    is_coming: tuple[Speech, ...]
    """A sentence that says it is being done, or about to be."""
    things: Mapping[str, Wording]
    """What a deed is done to, out there and not in the answer."""
    asked: Mapping[str, Wording]
    """A request for a deed."""
    finished: Wording
    """A whole answer that says no more than that all is done."""
    stalling: Wording
    """A promise that names no deed."""
    at_once: Wording
    clause: Wording
    """What parts a sentence into clauses, each of which is judged by itself."""
    condition: Wording
    """A sentence with this is no claim."""
    taken_back: Wording
    """A clause with this is no claim: a denial, a question, somebody else's words."""
    open_ended: Wording
    """A sentence with this promises nothing: an offer, a condition, a question back."""
    past: Wording
    """A sentence with this speaks of what was done before this request."""
    already: Wording
    not_asked: Wording
    """A request with this asks for words: how, what, why."""
    would: Wording
    """A request with this asks what the speaker would do: an answer to it promises nothing."""
    about_past: Wording
    """A request with this asks what was done before."""
    words_wanted: Wording
    """A request with this asks for a text, in which anybody may say anything."""
    for_keeps: Wording
    """A request with this wants more than a text."""
    nothing_done: str
    only_these: str


def deeds_by_verb(table: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """From the verbs of each deed to the deeds of each verb."""
    found: dict[str, set[str]] = {}
    for deed, verbs in table.items():
        for verb in verbs.split(", "):
            found.setdefault(verb, set()).add(deed)
    return {verb: frozenset(deeds) for verb, deeds in found.items()}


def wordings(**texts: str) -> dict[str, Wording]:
    """A pattern a deed."""
    return {deed: Wording(text) for deed, text in texts.items()}


FILE = (
    r"[\w~./\\-]*\w\.(?:txt|md|py|json|ya?ml|toml|csv|tsv|js|ts|tsx|jsx|html?|css|sh|log|ini|cfg|conf|xml|sql|pdf|"
    r"docx?|xlsx?|pptx?|png|jpe?g|svg|zip|gz|tar|env|rs|go|java|c|cpp|h|rb|php|ipynb|lock|bak)\b|\b(?:README|"
    r"Makefile|Dockerfile|crontab)\b|(?:^|[\s`(])~?/[\w.-]+/?[\w./-]*"
)
"""What looks like the name of a file."""
