"""The facts of a Markdown memory: parsing, comparing, adding, removing and ranking them.

A fact is a list item with the indented lines below it, or any other line of text. Headings, tables, code and comments
are not facts and change only by hand. Facts are identified by their words; the file has no ids. A line that ends in
`(pinned)` pins its fact: only a person changes it then. Pure, no I/O.
"""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

ITEM = re.compile(r"^(\s*)(?:[-*+]|\d{1,3}[.)])\s+(.*)$")
_NO_FACT = re.compile(r"^\s*(?:#{1,6}\s|\||>?\s*$|-{3,}\s*$|\*{3,}\s*$|={3,}\s*$)")
PIN = "(pinned)"
_PIN = re.compile(r"\s*\(pinned\)\s*$", re.IGNORECASE)
_SECTION = re.compile(r"^[ ]{0,3}#{2,6}\s")
_FENCE = re.compile(r"^\s*(```|~~~)")
_TOKEN = re.compile(r"-?\d+(?:[.,:/]\d+)*|[^\W_]+[+#]*|[^\w\s.,;:!\"'`*_()\[\]{}’“”«»…。，、；：！-]")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_FILLERS = frozenset({"the", "very", "really", "also"})
_ARTICLES = frozenset({"a", "an"})
_WHO = frozenset({"user", "owner"})
BOM = "\ufeff"
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_LENGTH = 5

_LASTING = re.compile(
    r"\b(?:always|never|must|important|remember|allerg|birthday|born|name is|called|lives?|works?|married|wife|husband"
    r"|partner|son|daughter|child|prefers?|likes?|loves?|hates?|speaks?|phone|address|e-?mail|timezone|diet)",
    re.IGNORECASE,
)
_PASSING = re.compile(
    r"^(?:(?:the )?(?:user|owner) )?(?:asked|talked|discussed|mentioned|said|chatted|greeted|wanted to know|looked up"
    r"|was told|inquired)\b|\b(?:today|yesterday|tomorrow|this morning|tonight|just now|currently|right now)\b"
    r"|(?:今天|昨天|明天|刚才|询问|问了|讨论了)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact on the lines `begin` to `end` (exclusive). `key` is its normalised text; `text` has no pin."""

    text: str
    key: str
    begin: int
    end: int
    heading: str = ""
    pinned: bool = False

    @property
    def id(self) -> str:
        """The id shown to people. Equal words have equal ids, in any file."""
        return fact_id(self.key)


def decode_escaped(data: bytes | None) -> str:
    """Decode the content of a file so that invalid bytes round-trip; empty without a file."""
    return (data or b"").decode("utf-8", "surrogateescape")


def encode_escaped(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@lru_cache(maxsize=16)
def parse_facts(text: str) -> tuple[Fact, ...]:
    """Return the facts of a text, in order."""
    lines = text.removeprefix(BOM).splitlines()
    facts: list[Fact] = []
    heading = ""
    for at, line in _fact_lines(lines):
        if line.lstrip().startswith("#") and _NO_FACT.match(line):
            heading = line.strip("# \t")
        elif not _NO_FACT.match(line) and (key := fact_key(line)):
            item, bare = ITEM.match(line), _PIN.sub("", line)
            pinned = _PIN.search(line) is not None
            last = facts[-1] if facts and facts[-1].end == at and not item else None
            first = ITEM.match(lines[last.begin]) if last else None
            if last and first and len(line) - len(line.lstrip()) > len(first[1]):  # by its indentation
                text = f"{last.text} {bare.strip()}"
                facts[-1] = Fact(text, fact_key(text), last.begin, at + 1, heading, last.pinned or pinned)
            else:
                text = bare[item.start(2) :].strip() if item else bare.strip()
                facts.append(Fact(text, key, at, at + 1, heading, pinned))
    return tuple(facts)


def _fact_lines(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines outside code and comments."""
    fenced = commented = False
    for at, line in enumerate(lines):
        if _FENCE.match(line):
            fenced = not fenced
            continue
        commented = commented or "<!--" in line
        if commented:
            commented = "-->" not in line
        elif not fenced:
            yield at, line


def fact_key(line: str) -> str:
    """Normalise a line: without pin, case, punctuation, articles and a leading "the user".

    Lines with the same key say the same. Numbers, negations and word order are kept.
    """
    line = _PIN.sub("", line)
    item = ITEM.match(line)
    words = _TOKEN.findall(unicodedata.normalize("NFKC", item[2] if item else line))
    words_kept = [
        word.casefold()
        for at, word in enumerate(words)
        if word.lower() not in _FILLERS and not (word in _ARTICLES and at + 1 < len(words))
    ]
    if len(words_kept) > 1 and words_kept[0] in _WHO and words_kept[1] != "s":
        del words_kept[0]
    return " ".join(words_kept).removeprefix("用户")


def fact_id(key: str) -> str:
    number = int.from_bytes(hashlib.sha256(key.encode("utf-8", "replace")).digest()[:8], "big")
    return "".join(_DIGITS[number >> 5 * place & 31] for place in range(_ID_LENGTH))


def fact_words(text: str) -> set[str]:
    """Return the words that identify a text; pairs of characters for scripts without spaces."""
    words: set[str] = set()
    for token in fact_key(text).split():
        if _CJK.search(token):
            words.update(token[at : at + 2] for at in range(max(1, len(token) - 1)))
        elif len(token) > 2 or token[-1].isdigit():
            words.add(token)
    return words


def remove_facts(text: str, removed: Sequence[Fact]) -> str:
    """Return the text without these facts, otherwise byte for byte."""
    lines = text.splitlines(keepends=True)
    cut = {at for fact in removed for at in range(fact.begin, fact.end)}
    mark = BOM if 0 in cut and text.startswith(BOM) else ""
    rest = mark + "".join(line for at, line in enumerate(lines) if at not in cut)
    if [fact.key for fact in parse_facts(rest)] != [fact.key for fact in parse_facts(text) if fact.begin not in cut]:
        # an indented line would continue the fact above it
        rest = mark + "".join("\n" if at in cut else line for at, line in enumerate(lines))
    return rest


def add_fact(text: str, heading: str, item: str) -> str:
    """Return the text with a fact added at the end of the section `heading`, or before the sections if it is empty,
    otherwise byte for byte.
    """
    lines = text.splitlines(keepends=True)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += end
    if not heading:
        at = next((at for at, line in _fact_lines(lines) if _SECTION.match(line)), len(lines))
        below = [end] if at < len(lines) else []
        while at and not lines[at - 1].strip():
            at -= 1
            below = []
        above = [end] if at and lines[at - 1].lstrip().startswith("#") else []
        return "".join([*lines[:at], *above, f"- {item}{end}", *below, *lines[at:]])
    place = _section_end(lines, heading)
    if place is None:
        gap = end if lines and lines[-1].strip() else ""
        return f"{''.join(lines)}{gap}## {heading}{end}{end}- {item}{end}"
    return "".join([*lines[:place], f"- {item}{end}", *lines[place:]])


def find_headings(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Return number and text of the headings outside code and comments."""
    bare = ((at, line.removeprefix(BOM).strip()) for at, line in _fact_lines(lines))
    return [(at, line.strip("# \t")) for at, line in bare if line.startswith("#") and line.strip("# \t")]


def _section_end(lines: Sequence[str], heading: str) -> int | None:
    """Return the line at which a fact is added to a section: after its last one."""
    headings = find_headings(lines)
    for number, (at, name) in enumerate(headings):
        if name == heading:
            end = headings[number + 1][0] if number + 1 < len(headings) else len(lines)
            filled = [line for line in range(at + 1, end) if lines[line].strip()]
            if filled:
                return filled[-1] + 1
            return at + 2 if at + 1 < end and not lines[at + 1].strip() else at + 1
    return None


def set_pinned(text: str, keys: Collection[str], *, pinned: bool) -> str:
    """Return the text with these facts pinned or not pinned, otherwise byte for byte."""
    lines = text.splitlines(keepends=True)
    for fact in parse_facts(text):
        if fact.key in keys and fact.pinned is not pinned:
            for at in range(fact.begin, fact.end):
                body = lines[at].splitlines()[0]
                mark = f" {PIN}" if pinned and at == fact.end - 1 else ""
                lines[at] = _PIN.sub("", body) + mark + lines[at][len(body) :]
    return "".join(lines)


def merge_facts(text: str) -> str:
    """Return the text without duplicate facts; of each, the first pinned one stays, or else the first."""
    kept: dict[str, Fact] = {}
    for fact in (facts := parse_facts(text)):
        if fact.key not in kept or (fact.pinned and not kept[fact.key].pinned):
            kept[fact.key] = fact
    return remove_facts(text, [fact for fact in facts if kept[fact.key] is not fact])


def fit_facts(text: str, max_bytes: int, importance: Callable[[Fact], float]) -> tuple[str, list[Fact]]:
    """Cut a text to `max_bytes`. Return it with the removed facts: the least important, of equals the first. Pinned
    facts stay.
    """
    size = len(text.encode("utf-8", "replace"))
    if size <= max_bytes:
        return text, []
    lines = text.splitlines(keepends=True)
    removed: list[Fact] = []
    for fact in sorted((fact for fact in parse_facts(text) if not fact.pinned), key=importance):
        if size <= max_bytes:
            break
        size -= sum(len(line.encode("utf-8", "replace")) for line in lines[fact.begin : fact.end])
        removed.append(fact)
    return remove_facts(text, removed), sorted(removed, key=lambda fact: fact.begin)


def fact_weight(fact: Fact) -> float:
    """Rate a fact by its words: lasting facts higher, momentary ones lower."""
    lasting = 1.0 if _LASTING.search(fact.text) else 0.0
    passing = 2.0 if _PASSING.search(fact.text) else 0.0
    return 1.0 + lasting - passing
