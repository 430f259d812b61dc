"""The channel of docs/examples/nanobot-lines, imported, and installed as a package."""

import shutil
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.house.repo import ROOT

MODULE = "nanobot_lines"
EXAMPLE = ROOT / "docs" / "examples" / "nanobot-lines"


def module() -> ModuleType:
    """Its code, imported."""
    made = ModuleType(MODULE)
    source = EXAMPLE / f"{MODULE}.py"
    exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), made.__dict__)
    return made


def install(site: Path) -> None:
    """What an installer makes of it."""
    project: dict[str, Any] = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (info := site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info").mkdir()
    about = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}", ""]
    (info / "METADATA").write_text("\n".join(about), encoding="utf-8")
    offered = [f"{name} = {target}" for name, target in project["entry-points"]["nanobot.channels"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[nanobot.channels]", *offered, ""]), encoding="utf-8")
    shutil.copy(EXAMPLE / f"{MODULE}.py", site)
