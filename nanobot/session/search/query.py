"""Tokenization for the search index: text to index words, and a question to index queries. Pure, no I/O.

Words are folded: case, width and accents are ignored. Text without spaces (Chinese, Japanese, Thai) or with suffixes
attached to words (Korean) becomes overlapping pairs of characters, and the last character of a run is added alone. One
character is then the prefix of a pair, two are a pair, and more are consecutive pairs, so each is found anywhere.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u1000-\u1049\u1780-\u17d3"  # Thai, Lao, Burmese, Khmer
    "\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3"  # Korean
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3105-\u312f"  # kana, bopomofo
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_MARKS = (
    "\u0483-\u0487\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u0900-\u0903\u093a-\u094f\u0951-\u0957"
)
"""Combining vowels and accents of widely read scripts."""
_RUN = re.compile(rf"[{_UNSPACED}]+|(?:[^\W_{_UNSPACED}]|[{_MARKS}])+")
_IS_UNSPACED = re.compile(rf"[{_UNSPACED}]")
_CHUNK = re.compile(r'["“”„]([^"“”„]*)["“”„]?|(\S+)')

_LONGEST = 48
"""Indexed characters of a word; longer ones are keys or base64."""
_MOST_WORDS = 24
"""Words of a question that are searched."""
_LONGEST_SHOWN = 60_000
"""Characters of a text that are searched for the place to show."""
_ENDINGS = ("ings", "ing", "ies", "ed", "ly", "s", "y")
_EMPTY_WORDS = """
a about an and any are as at be but by can did do does for from had has have he her his how i if in is it its me
my of on or our she so that the their them then there they this to us was we were what when where which who why will
with you your
"""
"""English stop words."""
_EMPTY = frozenset(_EMPTY_WORDS.split())


class _Accents(dict[int, int | None]):
    """Maps letters to letters without accents, for Latin, Greek and Cyrillic."""

    def __missing__(self, code: int) -> int | None:
        base: int | None = code
        if 0x300 <= code <= 0x36F:
            base = None
        elif code < 0x530 or 0x1E00 <= code < 0x2000:
            base = ord(unicodedata.normalize("NFD", chr(code))[0])
        self[code] = base
        return base


_ACCENTS = _Accents()


def fold(text: str) -> str:
    """Return the text without case, width and accents."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", text).casefold().translate(_ACCENTS)


def index_words(text: str) -> str:
    """Return the index words of a text, separated by spaces."""
    text = fold(text)
    runs = _RUN.findall(text)
    if text.isascii() or not _IS_UNSPACED.search(text):
        return " ".join(run if len(run) <= _LONGEST else run[:_LONGEST] for run in runs)
    return " ".join(word for run in runs for word in _cut(run))


def _cut(run: str) -> Iterator[str]:
    if _IS_UNSPACED.match(run):
        yield from map("".join, pairwise(run))
        yield run[-1]
    else:
        yield run[:_LONGEST]


@dataclass(frozen=True, slots=True)
class Term:
    """A phrase to search: one or more consecutive words."""

    words: tuple[str, ...]
    """As in the index."""
    runs: tuple[str, ...]
    """As written, folded."""
    is_prefix: bool = False
    """Whether the last word is a prefix."""

    def __str__(self) -> str:
        """Return the FTS5 query. The words contain no quotes."""
        return f'"{" ".join(self.words)}"{" *" if self.is_prefix else ""}'

    def is_in(self, words: str) -> bool:
        """Whether the words of a text, as returned by `index_words`, contain it."""
        sought = f" {' '.join(self.words)}{'' if self.is_prefix else ' '}"
        return sought in f" {words} "

    @property
    def shape(self) -> str:
        """Return a pattern that matches it in folded text."""
        open_end = self.is_prefix or _IS_UNSPACED.match(self.runs[-1])
        begin = "" if _IS_UNSPACED.match(self.runs[0]) else r"(?<![^\W_])"
        return begin + r"[\W_]*".join(map(re.escape, self.runs)) + ("" if open_end else r"(?![^\W_])")


@dataclass(frozen=True, slots=True)
class Question:
    """A parsed search."""

    text: str
    terms: tuple[Term, ...]
    """As typed."""
    wider: tuple[Term, ...]
    """With other endings, and with runs without spaces cut into pairs."""

    @classmethod
    def of(cls, text: str) -> "Question":
        """Parse a search. Quotes group words into a phrase, a trailing star allows any ending."""
        terms: list[Term] = []
        wider: list[Term] = []
        for quoted, chunk in _CHUNK.findall(text):
            is_prefix = chunk.endswith("*")
            term = _term(quoted or chunk, is_prefix=is_prefix)
            if term is not None and term not in terms and len(terms) < _MOST_WORDS:
                terms.append(term)
                wider += [term] if quoted or is_prefix else _widen(term)
        return cls(text, tuple(terms), tuple(dict.fromkeys(wider))[: 2 * _MOST_WORDS])

    @property
    def some(self) -> tuple[Term, ...]:
        """The wider terms without stop words, unless there are only stop words."""
        return tuple(term for term in self.wider if term.words[0] not in _EMPTY) or self.wider


def _term(text: str, *, is_prefix: bool) -> Term | None:
    runs = tuple(run[:_LONGEST] for run in _RUN.findall(fold(text)))
    words = tuple(word for run in runs for word in _cut(run))
    if not words:
        return None
    if _IS_UNSPACED.match(runs[-1]):  # the word may continue
        return Term(words[:-1], runs, is_prefix) if len(runs[-1]) > 1 else Term(words, runs, is_prefix=True)
    return Term(words, runs, is_prefix)


def _widen(term: Term) -> list[Term]:
    word = term.words[0]
    if len(term.words) > 1:
        return [Term((pair,), (pair,)) for pair in term.words] if _IS_UNSPACED.match(word) else [term]
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return [Term(term.words, term.runs, is_prefix=len(word) > 2 or term.is_prefix)]
    end = next((end for end in _ENDINGS if word.endswith(end) and len(word) - len(end) > 2), "")
    stem = word.removesuffix(end)
    return [Term((stem,), (stem,), is_prefix=True)]


def find_match(text: str, question: Question) -> tuple[int, int]:
    """Return start and end of the longest term found in a text; (0, 0) if there is none."""
    folded_text, positions = _fold_with_positions(text[:_LONGEST_SHOWN])
    for terms in (question.terms, question.wider):
        for term in sorted(terms, key=lambda candidate: -len("".join(candidate.runs))):
            if match := re.search(term.shape, folded_text):
                return positions[match.start()], positions[match.end() - 1] + 1
    return 0, 0


def _fold_with_positions(text: str) -> tuple[str, Sequence[int]]:
    """Fold the text, and return the original position of each folded character."""
    folded_text = fold(text)
    if len(folded_text) == len(text):
        return folded_text, range(len(text))
    pieces = [fold(letter) for letter in text]
    return "".join(pieces), [at for at, piece in enumerate(pieces) for _ in piece]
