"""Text as the words of an index, and a question as what such an index is asked. Pure.

Words are folded: case, width and accents make no difference. What is written without spaces (Chinese, Japanese, Thai)
or with endings grown onto words (Korean) is cut into pairs of characters, each pair beginning one character after the
other, and the last character of a run stands once more alone. So one character is the beginning of a pair, two are a
pair, and more are pairs in a row: each is found wherever it stands.
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
"""Vowels and accents that are written as signs of their own, in the scripts that have most readers."""
_RUN = re.compile(rf"[{_UNSPACED}]+|(?:[^\W_{_UNSPACED}]|[{_MARKS}])+")
_IS_UNSPACED = re.compile(rf"[{_UNSPACED}]")
_CHUNK = re.compile(r'["“”„]([^"“”„]*)["“”„]?|(\S+)')

_LONGEST = 48
"""Letters of a word that count: what is longer is a key, a picture in base64, a line of a ruler."""
_MOST_WORDS = 24
"""Words of a question that are looked for."""
_LONGEST_SHOWN = 60_000
"""Characters of a text in which words are looked for to be shown."""
_ENDINGS = ("ings", "ing", "ies", "ed", "ly", "s", "y")
_EMPTY_WORDS = """
a about an and any are as at be but by can did do does for from had has have he her his how i if in is it its me
my of on or our she so that the their them then there they this to us was we were what when where which who why will
with you your
"""
"""English words that say nothing of what is looked for."""
_EMPTY = frozenset(_EMPTY_WORDS.split())


class _Accents(dict[int, int | None]):
    """Letters to letters without accents: those of Latin, Greek and Cyrillic, where people leave them out."""

    def __missing__(self, code: int) -> int | None:
        base: int | None = code
        if 0x300 <= code <= 0x36F:
            base = None
        elif code < 0x530 or 0x1E00 <= code < 0x2000:
            base = ord(unicodedata.normalize("NFD", chr(code))[0])
        self[code] = base
        return base


_ACCENTS = _Accents()


def folded(text: str) -> str:
    """The text without case, width and accents."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", text).casefold().translate(_ACCENTS)


def words_of(text: str) -> str:
    """The words of a text as the index keeps them, parted by blanks."""
    text = folded(text)
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
    """Something that is looked for: words that stand one behind the other."""

    words: tuple[str, ...]
    """As the index keeps them."""
    runs: tuple[str, ...]
    """As they are written, folded."""
    begins: bool = False
    """Whether only the beginning of the last one is known."""

    def __str__(self) -> str:
        """As FTS5 is asked for it. The words hold no quotes."""
        return f'"{" ".join(self.words)}"{" *" if self.begins else ""}'

    def stands_in(self, words: str) -> bool:
        """Whether it is among these words, as `words_of` tells them."""
        sought = f" {' '.join(self.words)}{'' if self.begins else ' '}"
        return sought in f" {words} "

    @property
    def shape(self) -> str:
        """A pattern of it in a folded text."""
        open_end = self.begins or _IS_UNSPACED.match(self.runs[-1])
        begin = "" if _IS_UNSPACED.match(self.runs[0]) else r"(?<![^\W_])"
        return begin + r"[\W_]*".join(map(re.escape, self.runs)) + ("" if open_end else r"(?![^\W_])")


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody looks for."""

    text: str
    terms: tuple[Term, ...]
    """As it was asked."""
    wider: tuple[Term, ...]
    """With other endings, and what was written in one piece without spaces cut into pairs."""

    @classmethod
    def of(cls, text: str) -> "Question":
        """The words of it; those within quotes belong together, and a star stands for any ending."""
        terms: list[Term] = []
        wider: list[Term] = []
        for quoted, chunk in _CHUNK.findall(text):
            begins = chunk.endswith("*")
            term = _term(quoted or chunk, begins=begins)
            if term is not None and term not in terms and len(terms) < _MOST_WORDS:
                terms.append(term)
                wider += [term] if quoted or begins else _widened(term)
        return cls(text, tuple(terms), tuple(dict.fromkeys(wider))[: 2 * _MOST_WORDS])

    @property
    def some(self) -> tuple[Term, ...]:
        """Those of the wider terms that say something."""
        return tuple(term for term in self.wider if term.words[0] not in _EMPTY) or self.wider


def _term(text: str, *, begins: bool) -> Term | None:
    runs = tuple(run[:_LONGEST] for run in _RUN.findall(folded(text)))
    words = tuple(word for run in runs for word in _cut(run))
    if not words:
        return None
    if _IS_UNSPACED.match(runs[-1]):  # it may go on there
        return Term(words[:-1], runs, begins) if len(runs[-1]) > 1 else Term(words, runs, begins=True)
    return Term(words, runs, begins)


def _widened(term: Term) -> list[Term]:
    word = term.words[0]
    if len(term.words) > 1:
        return [Term((one,), (one,)) for one in term.words] if _IS_UNSPACED.match(word) else [term]
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return [Term(term.words, term.runs, begins=len(word) > 2 or term.begins)]
    end = next((end for end in _ENDINGS if word.endswith(end) and len(word) - len(end) > 2), "")
    stem = word.removesuffix(end)
    return [Term((stem,), (stem,), begins=True)]


def place_in(text: str, question: Question) -> tuple[int, int]:
    """Where in a text the longest of the terms stands that are in it, from which character to which; (0, 0) if none."""
    plain, places = _with_places(text[:_LONGEST_SHOWN])
    for terms in (question.terms, question.wider):
        for term in sorted(terms, key=lambda one: -len("".join(one.runs))):
            if found := re.search(term.shape, plain):
                return places[found.start()], places[found.end() - 1] + 1
    return 0, 0


def _with_places(text: str) -> tuple[str, Sequence[int]]:
    """The text folded, and of each of its characters where it stood."""
    plain = folded(text)
    if len(plain) == len(text):
        return plain, range(len(text))
    pieces = [folded(one) for one in text]
    return "".join(pieces), [at for at, piece in enumerate(pieces) for _ in piece]
