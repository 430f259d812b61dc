"""Separates the new text of a mail from the quoted mail and the signature below it.

Mail programs have only conventions for this. In unclear cases nothing is cut: answers written into a quotation stay.
"""

import re
from collections.abc import Sequence

_RULE = re.compile(r"^\s*(?:_{10,}|-{3,}[^-]{3,60}-{3,})\s*$")
"""Such as `-----Original Message-----`, in any language."""
_HEADING = re.compile(r"(?i)^\s*\*?(?:from|von|de|da|van|fra|från|od|от|发件人|寄件者|差出人)\s?\*?[:：]\s?.+$")
_OTHER_HEADING = re.compile(
    r"(?i)^\s*\*?(?:sent|date|to|cc|subject|gesendet|datum|an|betreff|envoy[ée]|[àa]|objet|enviado|para|asunto|inviato"
    r"|a|oggetto|verzonden|aan|onderwerp|发送时间|收件人|主题|日期|抄送)\s?\*?[:：]"
)
_SIGNATURE = "-- "


def split_quote(text: str) -> tuple[str, str]:
    """Split a text into the new part and the quotation below it (empty if there is none). Joined they are the text."""
    lines = text.splitlines(keepends=True)
    headings = (number for number in range(len(lines)) if _is_heading(lines, number))
    start = min(next(headings, len(lines)), _marked_quote(lines, len(without_signature(text).splitlines())))
    new = "".join(lines[:start])
    return (new, "".join(lines[start:])) if new.strip() else (text, "")


def without_signature(text: str) -> str:
    """The text above the signature (RFC 3676, 4.3)."""
    lines = text.splitlines(keepends=True)
    for number in range(len(lines) - 1, max(len(lines) - 12, -1), -1):
        if lines[number].rstrip("\r\n") in (_SIGNATURE, _SIGNATURE.rstrip()):
            return "".join(lines[:number])
    return text


def _is_heading(lines: Sequence[str], number: int) -> bool:
    """Whether a block such as From:, Sent:, To:, Subject: starts here, as in Outlook's quotations, or its rule."""
    if _RULE.match(lines[number]):
        return any(_HEADING.match(line) for line in lines[number + 1 : number + 2])
    others = [line for line in lines[number + 1 : number + 6] if _OTHER_HEADING.match(line)]
    return _HEADING.match(lines[number]) is not None and len(others) >= 2


def _marked_quote(lines: Sequence[str], end: int) -> int:
    """Where the lines with `>` begin that end the text before `end`, or the line above that says whose they are."""
    above = end
    while above and (lines[above - 1].startswith(">") or not lines[above - 1].strip()):
        above -= 1
    start = next((number for number in range(above, end) if lines[number].startswith(">")), len(lines))
    if start < len(lines) and above and lines[above - 1].rstrip().endswith((":", "：")):
        start = above - 1
        if start and re.search(r"\d", lines[start - 1]) and not re.search(r"\d", lines[start]):
            start -= 1  # "On 2 November, somebody with a long name" is wrapped
    return start
