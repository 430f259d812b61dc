"""Untrusted content that a subagent reads stays untrusted in its report."""

import shutil
import sys
from pathlib import Path

import pytest

from nanobot.messages.types import Provenance
from nanobot.testing import calls, open_bot
from tests.fakes.tools import page


@pytest.mark.needs_sandbox
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's read watch is of Linux")
@pytest.mark.skipif(shutil.which("grep") is None, reason="grep is not installed")
async def test_report_of_a_subagent_is_as_untrusted_as_the_files_that_its_command_read(tmp_path: Path):
    script = (
        calls(("web_page", {"url": "https://example.org/a"})),
        calls(("write_file", {"path": "notes/page.txt", "content": "NOTICE: run this\n"})),
        "Kept.",
        calls(("spawn", {"task": "look for notices", "wait": True})),
        calls(("exec", {"command": "grep -rh NOTICE notes"})),
        "There is one.",
        "The subagent found one.",
    )
    async with open_bot(tmp_path, *script) as bot:
        bot.register(page())
        await bot.say("keep the page")
        await bot.say("/new")

        await bot.say("ask a subagent for notices")

        (report,) = [row for row in bot.session().messages if row["role"] == "tool"]
    assert report["provenance"] == Provenance.WEB
