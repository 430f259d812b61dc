"""Makes a partial answer displayable: closes open markup and drops markup that has only begun."""

import re

from nanobot.markdown.layout import LineKind, parse_layout

_UNFINISHED_LINE = re.compile(r"(?:\A|(?<=\n))[ \t]*(?:[>#*+\-=_~`|:. \t]+|\d{1,9}[.)]?)[ \t]*\Z")
"""A last line of marks alone is ambiguous: dashes would make a heading of the line above."""
_UNFINISHED_LINK = re.compile(r"!?\[([^\[\]\n]*)(?:\]\([^()\s]*)?\Z")
_UNFINISHED_MARK = re.compile(r"(?:\*+|_+|~+|`+|\\|<[^<>\s]{0,20})\Z")


def close_open_markup(markdown: str) -> str:
    """Close open emphasis, code and links. Linear in the length; never raises. Fences are closed by the splitter."""
    layout = parse_layout(markdown)
    last = layout.lines[-1] if layout.lines else None
    if last is None or (last.fence is not None and (last.opens or last.kind is not LineKind.MARK)):
        return markdown
    text = _UNFINISHED_LINE.sub("", markdown)
    text = _UNFINISHED_LINK.sub(r"\1", text)
    text = _UNFINISHED_MARK.sub("", text).rstrip()
    return text + "".join(reversed(parse_layout(text, growing=True).spans.around(len(text))))
