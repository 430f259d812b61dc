"""Separates the new text of a mail from the quoted mail and the signature below it.

Mail programs have only conventions for this. In unclear cases nothing is cut: answers written into a quotation stay.
"""

import re
from collections.abc import Sequence

_ATTRIBUTION = re.compile(
    r"""(?xi)
    ^\s*(?:
        on\b.{5,200}\bwrote | am\b.{5,200}\bschrieb\b.{0,100} | le\b.{5,200}\ba\s[ée]crit
      | el\b.{5,200}\bescribi[óo]\b.{0,100}
      | il\b.{5,200}\bha\sscritto | op\b.{5,200}\bschreef\b.{0,100} | em\b.{5,200}\bescreveu
      | den\b.{5,200}\bskrev\b.{0,100}
      | w\sdniu\b.{5,200}\bnapisał.{0,100} | .{5,200}(?:писал|написал).{0,40} | .{0,200}写道 | .{0,200}のメール
      | .{5,200}님이\s작성
    )\s?[:：]?\s*$"""
)
"""The line that starts a quotation; it may be wrapped into two lines."""
_SEPARATOR = re.compile(
    r"""(?xi)^\s*(?:
        -{3,}\s?(?:original\smessage|urspr[üu]ngliche\snachricht|message\sd.origine|mensaje\soriginal
        |messaggio\soriginale|oorspronkelijk\sbericht|mensagem\soriginal|原始邮件|原始郵件|исходное\sсообщение)\s?-{3,}
    )\s*$"""
)
_RULE = re.compile(r"^\s*_{10,}\s*$")
_HEADING = re.compile(r"(?i)^\s*\*?(?:from|von|de|da|van|fra|från|od|от|发件人|寄件者|差出人)\s?\*?[:：]\s?.+$")
_OTHER_HEADING = re.compile(
    r"(?i)^\s*\*?(?:sent|date|to|cc|subject|gesendet|datum|an|betreff|envoy[ée]|[àa]|objet|enviado|para|asunto|inviato"
    r"|a|oggetto|verzonden|aan|onderwerp|发送时间|收件人|主题|日期|抄送)\s?\*?[:：]"
)
_SIGNATURE = "-- "


def split_quote(text: str) -> tuple[str, str]:
    """Split a text into the new part and the quotation below it (empty if there is none). Joined they are the text."""
    lines = text.splitlines(keepends=True)
    own = len(without_signature(text).splitlines()) - 1
    while own >= 0 and (lines[own].startswith(">") or not lines[own].strip()):
        own -= 1
    has_quotes = any(line.startswith(">") for line in lines[own + 1 :])
    for number in range(len(lines)):
        if _begins_quotation(lines, number, own, has_quotes=has_quotes):
            new = "".join(lines[:number])
            return (new, "".join(lines[number:])) if new.strip() else (text, "")
    return text, ""


def without_signature(text: str) -> str:
    """The text above the signature (RFC 3676, 4.3)."""
    lines = text.splitlines(keepends=True)
    for number in range(len(lines) - 1, max(len(lines) - 12, -1), -1):
        if lines[number].rstrip("\r\n") in (_SIGNATURE, _SIGNATURE.rstrip()):
            return "".join(lines[:number])
    return text


def _begins_quotation(lines: Sequence[str], number: int, own: int, *, has_quotes: bool) -> bool:
    """Whether everything from this line on is quoted. `own` is the last unquoted line before the signature."""
    line = lines[number]
    if _SEPARATOR.match(line):
        return True
    if _is_heading(lines, number) or (_RULE.match(line) and _is_heading(lines, number + 1)):
        return True
    if line.startswith(">"):
        return own < number
    for length in (1, 2) if line.strip() else ():
        joined = " ".join(part.strip() for part in lines[number : number + length])
        if _ATTRIBUTION.match(joined):
            return own < number + length and has_quotes
    return False


def _is_heading(lines: Sequence[str], number: int) -> bool:
    """Whether a block such as From:, Sent:, To:, Subject: starts here, as in Outlook's quotations."""
    if number >= len(lines) or not _HEADING.match(lines[number]):
        return False
    return sum(1 for line in lines[number + 1 : number + 6] if _OTHER_HEADING.match(line)) >= 2
