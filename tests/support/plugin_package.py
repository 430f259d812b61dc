"""Packages that bring plugins, as an installer leaves them: a folder to put on the path."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def install(
    site: Path,
    package: str,
    code: str,
    points: Mapping[str, Mapping[str, str]],
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
) -> Path:
    """A package of one module, named as it is; `points` are its entry points, by `tools`, `hooks` and so on."""
    module = package.replace("-", "_")
    info = site / f"{module}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (site / f"{module}.py").write_text(code, encoding="utf-8")
    about = ["Metadata-Version: 2.1", f"Name: {package}", f"Version: {version}"]
    about += [f"Requires-Dist: {one}" for one in requires]
    (info / "METADATA").write_text("\n".join([*about, ""]), encoding="utf-8")
    lines: list[str] = []
    for group, offered in points.items():
        lines += [f"[nanobot.{group}]", *(f"{name} = {module}:{target}" for name, target in offered.items())]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return site


TOOL = """
from nanobot.agent.tools.base import Tool

class Weather(Tool):
    name = "weather_of"
    description = "The weather."
    parameters = {"type": "object", "properties": {}}

    def __init__(self, settings):
        self.settings = settings

    async def execute(self):
        return f"sunny in {self.settings.get('place', 'nowhere')}"
"""
HOOK = """
import time, asyncio
from nanobot.agent.hooks import Deny, Hook, NewText

class Audit(Hook):
    async def on_message(self, message):
        return NewText(message.text + " (audited)")

class Hangs(Hook):
    async def before_tool(self, call):
        time.sleep(30)  # blocks its thread, as code does that was not written for a loop

class Raises(Hook):
    async def on_answer(self, answer):
        raise ValueError("no such thing")
"""
