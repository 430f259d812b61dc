"""The table of docs/writing-a-channel.md: each row of the contract suite, and where it does not apply.

`python -m tests.contracts.test_matrix` rewrites it.
"""

import re
from pathlib import Path

from nanobot.channels.registry import find
from nanobot.testing.channels import channel_rows, lacking
from tests.fakes.platforms import PLATFORMS, platform_class

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-channel.md"
_TABLE = re.compile(r"(?<=<!-- matrix -->\n\n).*?(?=<!-- end of the matrix -->)", re.DOTALL)


def table() -> str:
    """The table: each promise, and the platforms on which it does not apply, with the reason."""
    specs = [spec for spec in map(find, PLATFORMS) if spec is not None]
    lines = ["| Every channel promises | Does not apply to |", "|---|---|"]
    for name, row in channel_rows().items():
        exceptions: dict[str, list[str]] = {}
        for spec in specs:
            if reason := lacking(platform_class(spec.name), row):
                exceptions.setdefault(reason, []).append(spec.title)
        cell = "; ".join(f"{', '.join(titles)}: {reason}" for reason, titles in exceptions.items())
        lines.append(f"| {name} | {cell} |")
    return "\n".join([*lines, "", ""])


def with_table(page: str) -> str:
    """The page as it has to be."""
    assert _TABLE.search(page), f"{PAGE.name} has no place for the matrix"
    return _TABLE.sub(lambda _: table(), page)


def test_the_page_shows_the_matrix_as_it_is():
    page = PAGE.read_text(encoding="utf-8")

    assert page == with_table(page), "run `python -m tests.contracts.test_matrix`"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
