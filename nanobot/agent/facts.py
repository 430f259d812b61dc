"""The facts of a Markdown memory: which there are, which say the same, and which leave first where there is no room.

A list item is a fact, with the indented lines below it, and so is any other line of text. Headings, tables, code and
comments are none: nobody but a person changes them. Nothing of this stands in the file: a fact is known by what it
says. Pure: no disk here.
"""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

ITEM = re.compile(r"^(\s*)(?:[-*+]|\d{1,3}[.)])\s+(.*)$")
_NO_FACT = re.compile(r"^\s*(?:#{1,6}\s|\||>?\s*$|-{3,}\s*$|\*{3,}\s*$|={3,}\s*$)")
_FENCE = re.compile(r"^\s*(```|~~~)")
_TOKEN = re.compile(r"-?\d+(?:[.,:/]\d+)*|[^\W_]+[+#]*|[^\w\s.,;:!\"'`*_()\[\]{}’“”«»…。，、；：！-]")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_FILLERS = frozenset({"the", "very", "really", "also"})
_ARTICLES = frozenset({"a", "an"})
_WHO = frozenset({"user", "owner"})
BOM = "\ufeff"
"""What some editors begin a text with."""
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
    """A fact and its lines: `begin` to before `end`. `key` is what it says, however it is written."""

    text: str
    key: str
    begin: int
    end: int
    heading: str = ""

    @property
    def id(self) -> str:
        """What a person calls it by. The same words have the same one, in whatever file."""
        return id_of(self.key)


def facts_in(text: str) -> list[Fact]:
    """The facts of a memory, from the first line to the last."""
    lines = text.removeprefix(BOM).splitlines()
    found: list[Fact] = []
    heading = ""
    for at, line in _in_the_open(lines):
        if line.lstrip().startswith("#") and _NO_FACT.match(line):
            heading = line.strip("# \t")
        elif not _NO_FACT.match(line) and (key := key_of(line)):
            item = ITEM.match(line)
            if not item and found and found[-1].end == at and _goes_on(lines[found[-1].begin], line):
                last = found[-1]
                words = f"{last.text} {line.strip()}"
                found[-1] = Fact(words, key_of(words), last.begin, at + 1, heading)
            else:
                found.append(Fact(item[2].strip() if item else line.strip(), key, at, at + 1, heading))
    return found


def _in_the_open(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The lines that are neither code nor comment, each with its place."""
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


def is_left_open(text: str) -> bool:
    """Whether code or a comment goes on beyond its end: what is added there would be no fact."""
    return [fact.text for fact in facts_in(f"{text}\n\n- end")][-1:] != ["end"]


def _goes_on(first: str, line: str) -> bool:
    """Whether a line belongs to the item before it: it is further in."""
    item = ITEM.match(first)
    return item is not None and len(line) - len(line.lstrip()) > len(item[1])


def key_of(line: str) -> str:
    """What a line says, without what says nothing: case, marks, articles, that it is about the owner.

    Two lines with one key say the same; whatever might make a difference (a number, a "not", the order) stays in it.
    """
    item = ITEM.match(line)
    words = _TOKEN.findall(unicodedata.normalize("NFKC", item[2] if item else line))
    kept = [
        word.casefold()
        for at, word in enumerate(words)
        if word.lower() not in _FILLERS and not (word in _ARTICLES and at + 1 < len(words))
    ]
    if len(kept) > 1 and kept[0] in _WHO and kept[1] != "s":
        del kept[0]
    return " ".join(kept).removeprefix("用户")


def id_of(key: str) -> str:
    """The id of what is said."""
    number = int.from_bytes(hashlib.sha256(key.encode("utf-8", "replace")).digest()[:8], "big")
    return "".join(_DIGITS[number >> 5 * place & 31] for place in range(_ID_LENGTH))


def words_of(text: str) -> set[str]:
    """The words a text is recognised by; of scripts without spaces each pair of letters."""
    found: set[str] = set()
    for token in key_of(text).split():
        if _CJK.search(token):
            found.update(token[at : at + 2] for at in range(max(1, len(token) - 1)))
        elif len(token) > 2 or token[-1].isdigit():
            found.add(token)
    return found


def lost_facts(before: str, after: str) -> list[Fact]:
    """The facts of a memory of which the one that is to take its place says little or nothing."""
    kept = {fact.key for fact in facts_in(after)}
    words = words_of(" ".join(line for _, line in _in_the_open(after.splitlines())))
    lost = []
    for fact in facts_in(before):
        own = words_of(fact.text)
        if fact.key not in kept and len(own & words) < 0.6 * max(1, len(own)):
            lost.append(fact)
    return lost


def without(text: str, gone: Sequence[Fact]) -> str:
    """The text without these facts; every other byte stays."""
    lines = text.splitlines(keepends=True)
    cut = {at for fact in gone for at in range(fact.begin, fact.end)}
    mark = BOM if 0 in cut and text.startswith(BOM) else ""
    return mark + "".join(line for at, line in enumerate(lines) if at not in cut)


def with_item(text: str, heading: str, item: str) -> str:
    """The text with one more fact, the last one below this heading; every other byte stays."""
    lines = text.splitlines(keepends=True)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    there = [fact.end for fact in facts_in(text) if fact.heading == heading]
    title = next((at + 1 for at, line in enumerate(lines) if line.strip() == f"## {heading}"), None)
    at = there[-1] if there else title
    if at is None:
        gap = "" if not text else end if text.endswith("\n") else end * 2
        return f"{text}{gap}## {heading}{end}{end}- {item}{end}"
    if not lines[at - 1].endswith(("\n", "\r")):
        lines[at - 1] += end
    return "".join([*lines[:at], "" if there else end, f"- {item}{end}", *lines[at:]])


def merged(text: str) -> str:
    """The text with each fact once: of several that say the same the first stays."""
    seen: set[str] = set()
    again = []
    for fact in facts_in(text):
        if fact.key in seen:
            again.append(fact)
        seen.add(fact.key)
    return without(text, again) if again else text


def within(text: str, most_bytes: int, importance: Callable[[Fact], float]) -> tuple[str, list[Fact]]:
    """The text in so many bytes, and the facts that left it for that: the least important, of equals the first."""
    size = len(text.encode("utf-8", "replace"))
    if size <= most_bytes:
        return text, []
    lines = text.splitlines(keepends=True)
    gone: list[Fact] = []
    for fact in sorted(facts_in(text), key=importance):
        if size <= most_bytes:
            break
        size -= sum(len(line.encode("utf-8", "replace")) for line in lines[fact.begin : fact.end])
        gone.append(fact)
    return without(text, gone), sorted(gone, key=lambda fact: fact.begin)


def weight_of(fact: Fact) -> float:
    """How much a fact matters by what it says: what holds for long more, what was so for a day less."""
    lasting = 1.0 if _LASTING.search(fact.text) else 0.0
    passing = 2.0 if _PASSING.search(fact.text) else 0.0
    return 1.0 + lasting - passing


def with_headings(facts: Sequence[Fact]) -> Iterator[str]:
    """These facts as lines of Markdown, each group under its heading."""
    heading = None
    for fact in facts:
        if fact.heading != heading:
            heading = fact.heading
            if heading:
                yield f"\n## {heading}\n"
        yield f"- {fact.text}"
