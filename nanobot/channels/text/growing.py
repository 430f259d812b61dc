"""An answer that still grows, as it may be shown: what is open in it is closed, what is only begun is left out."""

import re

from nanobot.channels.text.layout import Kind, lay_out

_UNFINISHED_LINE = re.compile(r"(?:\A|(?<=\n))[ \t]*(?:[>#*+\-=_~`|:. \t]+|\d{1,9}[.)]?)[ \t]*\Z")
"""A last line of marks alone: nobody knows yet what they are, and a line of dashes makes a heading of what is above."""
_UNFINISHED_LINK = re.compile(r"!?\[([^\[\]\n]*)(?:\]\([^()\s]*)?\Z")
_UNFINISHED_MARK = re.compile(r"(?:\*+|_+|~+|`+|\\|<[^<>\s]{0,20})\Z")


def so_far(markdown: str) -> str:
    """The text with its open emphasis, code and links closed. Linear in its length; never raises.

    A fence stays open: whoever cuts the text into pieces closes it.
    """
    layout = lay_out(markdown)
    last = layout.lines[-1] if layout.lines else None
    if last is None or (last.fence is not None and (last.opens or last.kind is not Kind.MARK)):
        return markdown
    text = _UNFINISHED_LINE.sub("", markdown)
    text = _UNFINISHED_LINK.sub(r"\1", text)
    text = _UNFINISHED_MARK.sub("", text).rstrip()
    return text + "".join(reversed(lay_out(text, growing=True).spans.around(len(text))))
