"""The channel that docs/guides/channels.md has whole, as the reader would have it: two files of a package."""

import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.house.repo import ROOT, text_of

MODULE = "nanobot_lines"


def _block(kind: str) -> str:
    guide = text_of(ROOT / "docs" / "guides" / "channels.md").partition("## A channel of your own")[2]
    found = re.search(rf"```{kind}\n(.*?)```", guide, re.DOTALL)
    assert found is not None
    return found[1]


def module() -> ModuleType:
    """Its code, imported."""
    made = ModuleType(MODULE)
    exec(compile(_block("python"), "docs/guides/channels.md", "exec"), made.__dict__)
    return made


def install(site: Path) -> None:
    """What an installer makes of the two files."""
    told: dict[str, Any] = tomllib.loads(_block("text"))["project"]
    (info := site / f"{told['name'].replace('-', '_')}-{told['version']}.dist-info").mkdir()
    about = ["Metadata-Version: 2.1", f"Name: {told['name']}", f"Version: {told['version']}", ""]
    (info / "METADATA").write_text("\n".join(about), encoding="utf-8")
    offered = [f"{name} = {target}" for name, target in told["entry-points"]["nanobot.channels"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[nanobot.channels]", *offered, ""]), encoding="utf-8")
    (site / f"{MODULE}.py").write_text(_block("python"), encoding="utf-8")
