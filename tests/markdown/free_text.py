"""Markdown as hypothesis makes it: pieces of everything that models write, whole and broken."""

from hypothesis import strategies as st

_BITS = [
    "**bold** ", "*it* ", "~~gone~~ ", "[link](http://a.b/c) ", "![p](http://a.b/p.png)", "`code` ", "``a ` b``",
    "```py\n", "```\n", "~~~\n", "\n", "\n\n", "- ", "  - ", "1. ", "> ", "# ", "| a | b |\n", "|---|---|\n",
    "| 1 | 2 | 3 |\n", "word ", "One sentence. ", "👨‍👩‍👧", "🇩🇪🇫🇷", "e\u0301", "漢字。", "مرحبا ", "<b>", "</b>",
    "<br>", "<div>", "<!-- c -->", "&amp;", "&", "<", ">", "\\", "*", "**", "_", "~~", "[", "]", "(", ")", "|", "---\n",
    "===\n", "x" * 50, "http://u.v/w_x_y ", "\t", "    ", "\r\n", "$x^2$ ", "````", "\x00", "\ud83d",
]  # fmt: skip

texts = st.lists(st.one_of(st.sampled_from(_BITS), st.text(max_size=6)), max_size=40).map("".join)

BAD = {
    "brackets": "[", "open links": "[a](",
    "pairs": "[[a] ", "links": "[](", "half links": "](a", "pictures": "![", "stars": "**a *b ", "nested": "a**b*c_d_ ",
    "backticks": "`" , "fences": "```\nx\n", "quotes": ">", "items": "- ", "dashes": "-", "dash lines": "-\n",
    "equals": "=\n", "empty lines": "\n", "lines": "a\n", "blanks": " ", "one word": "x", "dots": ".", "pipes": "|",
    "tables": "|a|\n|-|\n", "rows": "|a|b|\n", "tags": "<a", "comments": "<!--", "backslashes": "\\", "flags": "🇩🇪",
    "families": "👨‍👩‍👧", "marks": "\u0301", "addresses": "https://a.b/c", "ampersands": "&", "numbers": "1. ",
}  # fmt: skip
"""What has brought a reader of Markdown down, to be repeated without end."""


def repeated(bit: str, size: int) -> str:
    return (bit * (size // len(bit) + 1))[:size]
