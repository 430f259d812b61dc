"""Work of every day, run as typed through the exec tool with the default config."""

import shutil
from datetime import datetime

import pytest

from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.shell import ExecTool
from nanobot.bus.events import Address
from nanobot.config.schema import Config
from nanobot.runtime.policies import tool_policies
from nanobot.runtime.sandbox import command_sandbox
from nanobot.utils.clock import FrozenClock
from tests.support.sandbox_home import SandboxHome

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not installed")

COMMANDS = {
    "ls -la": "memory",
    "pwd": "workspace",
    "echo hello world": "hello world",
    "echo 'single' \"double $((1+2))\"": "single double 3",
    "mkdir -p a/b/c && touch a/b/c/d && find a -type f": "a/b/c/d",
    "printf 'b\\na\\n' | sort | head -1": "a",
    "cat <<'EOF' > note.md && cat note.md\n# rm -rf / is only a text\nEOF": "only a text",
    "grep -rn 'rm -rf' . || echo none": "none",
    "echo äöü-日本語 > 'süß ☕.txt' && ls *☕*": "süß ☕.txt",
    "wc -l < /etc/passwd": "",
    "for i in 1 2 3; do echo -n $i; done": "123",
    "git init -q r && cd r && git -c user.name=a -c user.email=a commit -q --allow-empty -m 'rm -f /' && git log": "rm",
    "git init -q g2 && cd g2 && echo x > f && git add f && git status --short": "A  f",
    "git diff --no-index /dev/null note.md | head -3; true": "",
    "sed 's/a/b/' <<< aaa": "baa",
    "sed -i 's/text/word/' note.md 2>/dev/null; echo x > e && sed -i s/x/y/ e && cat e": "y",
    "awk '{print $1 * 2}' <<< 21": "42",
    "python3 -c 'import json; print(json.dumps({\"a\": 1}))'": '{"a": 1}',
    "python3 - <<'E'\nprint('rm -rf /')\nE": "rm -rf /",
    "python3 -m venv --without-pip env && env/bin/python -c 'print(6*7)'": "42",
    "pip --version || python3 -m pip --version || true": "",
    "tar czf all.tgz memory && tar tzf all.tgz": "memory/",
    "cp memory/HISTORY.md copy.md && cat copy.md": "history",
    "mv copy.md moved.md 2>/dev/null || echo x > moved.md; ls moved.md": "moved.md",
    "rm -rf a env repo && echo gone": "gone",
    "date +%Y": "20",
    "uname -s": "Linux",
    "df -h . | tail -1": "%",
    "du -sh . | cut -f1": "",
    "ps aux | head -3": "PID",
    "env | grep -c =": "",
    "which git": "git",
    "head -c 16 /dev/urandom | xxd -p | wc -c": "33",
    "seq 1 1000 | tail -1": "1000",
    "diff <(echo a) <(echo a) && echo same": "same",
    'x=$(echo nested $(echo deep)); echo "$x"': "nested deep",
    "(sleep 0.05; echo late) & wait": "late",
    "timeout 2 echo quick": "quick",
    "mktemp -d": "/tmp/",
    "echo cached > ${XDG_CACHE_HOME:-/tmp}/x 2>/dev/null; mkdir -p /tmp/w && cd /tmp/w && echo ok": "ok",
    "test -w . && echo writable": "writable",
    "find . -name '*.md' -print0 | xargs -0 ls": "HISTORY.md",
    "perl -e 'print 1+1'": "2",
    "echo '{\"a\": [1, 2]}' | python3 -m json.tool": '"a"',
    "nohup true > /dev/null 2>&1 & wait; echo done": "done",
    "cat ~/notes.txt": "plain notes",
}


@pytest.fixture
def tool(home: SandboxHome) -> ExecTool:
    policies = tool_policies(Config(), home.data, home.workspace)
    return ExecTool(policies.paths, policies.exec)


@pytest.mark.parametrize("share", [0, *(pytest.param(share, marks=pytest.mark.slow) for share in (1, 2, 3))])
async def test_work_of_every_day_runs_as_typed(tool: ExecTool, home: SandboxHome, share: int):
    context = ToolContext(
        "cli:direct", Address("cli", "direct"), "t", home.workspace, FrozenClock(datetime(2026, 1, 2, 3, 4))
    )
    failed = {}
    for command, said in list(COMMANDS.items())[share::4]:
        result = await tool.execute(command, ctx=context)
        if result.error or said not in str(result.content):
            failed[command] = result.content

    assert failed == {}


def test_the_default_config_walls_commands_off(home: SandboxHome):
    walls = command_sandbox(Config(), home.data, home.workspace)

    report = walls.report()

    assert report.is_available
    assert "Processes outside cannot be touched." in report.holds
    assert walls.is_available
