"""The table of docs/guides/channels.md: each row of the contract suite, and which platforms it holds.

`python -m tests.contracts.matrix` writes it anew; a test fails when the page says anything else.
"""

import re
from pathlib import Path

from nanobot.channels.registry import find
from nanobot.testing.channels import channel_rows, lacking
from tests.fakes.platforms import PLATFORMS, platform_class

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "channels.md"
_TABLE = re.compile(r"(?<=<!-- matrix -->\n\n).*?(?=<!-- end of the matrix -->)", re.DOTALL)


def table() -> str:
    """The table, and below it why a row is left out where it is."""
    specs = [spec for spec in map(find, PLATFORMS) if spec is not None]
    platforms = [platform_class(spec.name) for spec in specs]
    reasons: list[str] = []
    lines = [
        "| Every channel promises | " + " | ".join(spec.title for spec in specs) + " |",
        "|---|" + ":-:|" * len(specs),
    ]
    for name, row in channel_rows().items():
        cells = []
        for platform in platforms:
            reason = lacking(platform, row)
            if reason and reason not in reasons:
                reasons.append(reason)
            cells.append(f"{reasons.index(reason) + 1}" if reason else "✓")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, *(["", *notes] if notes else []), "", ""])


def with_table(page: str) -> str:
    """The page as it has to be."""
    assert _TABLE.search(page), f"{PAGE.name} has no place for the matrix"
    return _TABLE.sub(lambda _: table(), page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
