"""Pieces of a command line that are read without what stands around them. `at` is where in the text to begin."""

import re

_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ANSI = re.compile(
    r"[^\\']+|\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL
)
_SUBSTITUTION = re.compile(r"(?<!\\)(?:`|\$\((?!\())")
_BRACES = re.compile(r"(?<!\$)\{([^{}]*,[^{}]*)\}")
_MOST_WORDS = 100


def next_substitution(text: str, at: int) -> int:
    """Where the next backtick or `$(` stands that is not escaped; -1 for none."""
    match = _SUBSTITUTION.search(text, at)
    return match.start() if match else -1


def end_of(text: str, char: str, at: int) -> int:
    """Where this character stands next; the end of the text if it does not."""
    found = text.find(char, at)
    return len(text) if found < 0 else found


def behind_bracket(text: str, at: int, opening: str, closing: str) -> int:
    """Behind the bracket that closes the one that stands here, quotes left out."""
    depth, quote = 0, ""
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return len(text) + 1


def in_braces(word: str) -> list[str]:
    """`{a,b}` as two words. Sequences and what does not close are left as they are; of too many only some are told."""
    words = [word]
    for at in range(_MOST_WORDS):
        if at >= len(words) or len(words) >= _MOST_WORDS:
            break
        while len(words) < _MOST_WORDS and (match := _BRACES.search(words[at])) is not None:
            start, end = words[at][: match.start()], words[at][match.end() :]
            words[at : at + 1] = [start + choice + end for choice in match[1].split(",")]
    return words


def ansi_quoted(text: str, at: int) -> tuple[str, int]:
    """What the rest of `$'...'` says, from behind its first quote on, and where the text goes on."""
    said = ""
    while at < len(text) and text[at] != "'":
        match = _ANSI.match(text, at)
        if match is None:
            at += 1
            continue
        hexa, octal = match[1] or match[2] or match[3], match[4]
        code = int(hexa, 16) if hexa else int(octal, 8) if octal else None
        if code is not None:
            said += chr(code) if code < 0x110000 else ""
        else:
            said += _ESCAPES.get(match[5], match[5]) if match[5] else match[0]
        at = match.end()
    return said, at + 1
