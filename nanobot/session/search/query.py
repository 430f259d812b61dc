"""What people search for, as terms that the index finds in folded text. Pure, no I/O.

Folded text ignores case, width, accents and punctuation, and stands between spaces, so that a term with a space before
it begins a word. Scripts without capitals (Chinese, Japanese, Korean, Thai, Arabic ...) are matched anywhere, since
words run together there or have prefixes.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Scripts without spaces between words (or, in Korean, with endings that are words elsewhere)."""
_CHUNK = re.compile(r'["“”„]([^"“”„]*)["“”„]?|(\S+)')

_MAX_CHARS = 48
"""Characters of a term that are searched."""
_MAX_TERMS = 24
_MAX_SHOWN = 60_000
"""Characters of a text that are searched for the place to show."""
_ENDINGS = ("ings", "ing", "ies", "ed", "ly", "s", "y")
_STOP_WORD_TEXT = """
a about an and any are as at be but by can did do does for from had has have he her his how i if in is it its me
my of on or our she so that the their them then there they this to us was we were what when where which who why will
with you your
"""
_STOP_WORDS = frozenset(_STOP_WORD_TEXT.split())


class _Folding(dict[int, str | None]):
    """Maps letters to letters without accents, for Latin, Greek and Cyrillic, and anything between words to a space."""

    def __missing__(self, code: int) -> str | None:
        char = chr(code)
        if unicodedata.category(char)[0] in "PSZC":
            folded: str | None = " "
        elif 0x300 <= code <= 0x36F:
            folded = None
        else:
            folded = unicodedata.normalize("NFD", char)[0] if code < 0x530 or 0x1E00 <= code < 0x2000 else char
        self[code] = folded
        return folded


_FOLDING = _Folding()


def fold(text: str) -> str:
    """Return the words of a text without case, width, accents and punctuation, each between two spaces."""
    lower = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    return f" {' '.join(lower.translate(_FOLDING).split())} "


@dataclass(frozen=True, slots=True)
class Query:
    """Terms to find in folded text: all of them, or any."""

    terms: tuple[str, ...]
    is_all: bool = True

    def matches(self, text: str) -> bool:
        folded = fold(text)
        return (all if self.is_all else any)(term in folded for term in self.terms)


def parse_query(text: str) -> list[Query]:
    """Return the queries for what a person typed, from strict to loose. Quotes group words into a phrase.

    First all words, at the beginning of words; then as parts of words, with other endings, and with text without spaces
    cut into pairs; then any of the words but stop words.
    """
    words: list[str] = []
    parts: list[str] = []
    for quoted, chunk in _CHUNK.findall(text):
        word = fold(quoted or chunk).strip()[:_MAX_CHARS]
        if not word or word in words or len(words) == _MAX_TERMS:
            continue
        words.append(word)
        parts += [word] if quoted or chunk.endswith("*") else _parts_of(word)
    if not words:
        return []
    significant = [part for part in parts if part.strip() not in _STOP_WORDS] or parts
    queries = [
        Query(tuple(map(_at_word_start, words))),
        Query(tuple(dict.fromkeys(map(_unless_short, parts)))),
        Query(tuple(dict.fromkeys(map(_unless_short, significant))), is_all=False),
    ]
    if len(queries[2].terms) == 1:  # what has any of one word has all
        del queries[2]
    return list(dict.fromkeys(queries))


def _has_case(word: str) -> bool:
    return word[0].isdecimal() or word[0].upper() != word[0].lower()


def _at_word_start(word: str) -> str:
    return _unless_short(f" {word}" if _has_case(word) and len(word) > 2 else word)


def _unless_short(word: str) -> str:
    """Return a part of words; a word of one or two letters is searched as a whole word only."""
    return f" {word} " if len(word) < 3 and _has_case(word) else word


def _parts_of(word: str) -> list[str]:
    if _UNSPACED.match(word) and " " not in word and len(word) > 2:
        return list(map("".join, pairwise(word)))
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return [word]
    return [word.removesuffix(next((end for end in _ENDINGS if word.endswith(end) and len(word) - len(end) > 2), ""))]


def find_match(text: str, queries: Sequence[Query]) -> tuple[int, int]:
    """Return start and end of the longest term found in a text; (0, 0) if there is none."""
    folded = "".join(_fold_char(char) for char in text[:_MAX_SHOWN])
    for query in queries:
        for term in sorted(map(str.strip, query.terms), key=len, reverse=True):
            if (at := folded.find(term)) >= 0:
                return at, at + len(term)
    return 0, 0


@cache
def _fold_char(char: str) -> str:
    """One folded character for one of the text, so that their positions are the same."""
    return fold(char).strip()[:1] or " "
