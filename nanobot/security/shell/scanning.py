"""Scanning parts of a command line without context. `at` is the offset in the text to start from."""

import re

_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ANSI = re.compile(
    r"[^\\']+|\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL
)
_SUBSTITUTION = re.compile(r"(?<!\\)(?:`|\$\((?!\())")
_BRACES = re.compile(r"(?<!\$)\{([^{}]*,[^{}]*)\}")
_MAX_WORDS = 100


def next_substitution(text: str, at: int) -> int:
    """The offset of the next unescaped backtick or `$(`; -1 for none."""
    match = _SUBSTITUTION.search(text, at)
    return match.start() if match else -1


def end_of(text: str, char: str, at: int) -> int:
    """The offset of the next such character; the end of the text if there is none."""
    offset = text.find(char, at)
    return len(text) if offset < 0 else offset


def behind_bracket(text: str, at: int, opening: str, closing: str) -> int:
    """The offset after the bracket that closes the one at `at`, ignoring quoted ones."""
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
    """Expand `{a,b}` to two words. Sequences and unclosed braces stay; at most about a hundred words come back."""
    words = [word]
    for at in range(_MAX_WORDS):
        if at >= len(words) or len(words) >= _MAX_WORDS:
            break
        while len(words) < _MAX_WORDS and (match := _BRACES.search(words[at])) is not None:
            start, end = words[at][: match.start()], words[at][match.end() :]
            words[at : at + 1] = [start + choice + end for choice in match[1].split(",")]
    return words


def ansi_quoted(text: str, at: int) -> tuple[str, int]:
    """The value of `$'...'` from after its first quote, and the offset after it."""
    value = ""
    while at < len(text) and text[at] != "'":
        match = _ANSI.match(text, at)
        if match is None:
            at += 1
            continue
        hexa, octal = match[1] or match[2] or match[3], match[4]
        code = int(hexa, 16) if hexa else int(octal, 8) if octal else None
        if code is not None:
            value += chr(code) if code < 0x110000 else ""
        else:
            value += _ESCAPES.get(match[5], match[5]) if match[5] else match[0]
        at = match.end()
    return value, at + 1
