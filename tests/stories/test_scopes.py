"""What one person told in private is nobody else's: not in a prompt, not by a tool, not by a command."""

import asyncio
import json
import shutil
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.disk import opener
from nanobot.bus.events import Address, InboundMessage
from nanobot.config.schema import Config
from nanobot.cron.service import CronService
from nanobot.cron.types import CronSchedule
from nanobot.messages.types import Provenance
from nanobot.providers.errors import InvalidRequestError
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.session.manager import SessionManager
from nanobot.testing import Bot, FrozenClock, Pause, calls, open_bot

CANARY = "canary-of-ann"
GROUP = "telegram:-100"
YES = Config.model_validate({"tools": {"approval": "off"}})
ON_TELEGRAM = Config.model_validate({"channels": {"telegram": {"enabled": True, "token": "1:a"}}})


def in_group(text: str, sender: str = "zoe", **more: Any) -> InboundMessage:
    return InboundMessage("telegram", sender, "-100", text, **more)


def told_in_private(home: Path) -> None:
    """Everything of the owner's and of another chat's that a workspace may hold."""
    workspace = home / "workspace"
    memory = MemoryStore(workspace)
    memory.write_long_term(f"- {CANARY} memory\n")
    memory.append_history(f"{CANARY} log")
    memory.append_today(f"{CANARY} note")
    memory.of(Scope("telegram:77")).write_long_term(f"- {CANARY} of chat 77\n")
    memory.of(Scope(GROUP)).write_long_term("- The group meets on Fridays.\n")
    (workspace / "USER.md").write_text(f"I am Ann, {CANARY}.", encoding="utf-8")
    for scope, words in ((Scope(), CANARY), (Scope("telegram:77"), CANARY), (Scope(GROUP), "Bring cake.")):
        notes = workspace / scope.notes / "3fa9c1d2"
        notes.mkdir(parents=True)
        (notes / "found.md").write_text(words, encoding="utf-8")
    sessions = SessionManager(workspace)
    session = sessions.get_or_create("telegram:7")
    session.add_message("user", f"{CANARY} in a conversation")
    sessions.save(session)
    sessions.archive("telegram:7")
    for place in (home / "media" / "telegram" / "ab12.txt", workspace / ".nanobot" / "spill" / "t1.txt"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{CANARY} in a file", encoding="utf-8")
    for place in (home / "history" / "cli_history", home / "logs" / "gateway.log"):
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"{CANARY} typed at the terminal", encoding="utf-8")
    (workspace / "cron").mkdir(exist_ok=True)


async def shown_to_the_model(bot: Bot, message: InboundMessage) -> str:
    before = len(bot.provider.requests)
    await bot.run_turn(message)
    return json.dumps(bot.provider.requests[before:], ensure_ascii=False, default=str)


LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "memory": ("read_file", {"path": "memory/MEMORY.md"}),
    "log": ("read_file", {"path": "memory/HISTORY.md"}),
    "another chat's": ("read_file", {"path": f"memory/{Scope('telegram:77').folder}/MEMORY.md"}),
    "notes of a goal": ("read_file", {"path": "goals/3fa9c1d2/found.md"}),
    "another chat's notes": ("list_dir", {"path": f"{Scope('telegram:77').notes}/3fa9c1d2"}),
    "user": ("read_file", {"path": "USER.md"}),
    "user by dots": ("read_file", {"path": "tools/../USER.md"}),
    "grep": ("grep", {"pattern": "canary"}),
    "grep memory": ("grep", {"pattern": "canary", "path": "memory"}),
    "grep sessions": ("grep", {"pattern": "canary", "path": "sessions"}),
    "grep a file": ("grep", {"pattern": "canary", "path": "USER.md"}),
    "grep spilled": ("grep", {"pattern": "canary", "path": ".nanobot/spill"}),
    "glob": ("glob", {"pattern": "*.jsonl", "path": "sessions/archive"}),
    "list": ("list_dir", {"path": "sessions", "recursive": True}),
    "list all": ("list_dir", {"path": ".", "recursive": True}),
    "typed": ("read_file", {"path": "../history/cli_history"}),
    "logs": ("read_file", {"path": "../logs/gateway.log"}),
    "grep beside": ("grep", {"pattern": "canary", "path": ".."}),
    "edit": ("edit_file", {"path": "USER.md", "old_text": "xyz", "new_text": "y"}),
    "command": (
        "exec",
        {"command": "cat memory/*.md memory/chats/*/*.md USER.md sessions/*/* .nanobot/*/* ../*/* 2>&1"},
    ),
    "command on notes": ("exec", {"command": "cat goals/*/*.md goals/chats/*/*/*.md 2>&1"}),
    "command elsewhere": ("exec", {"command": "cat MEMORY.md", "working_dir": "memory"}),
    "command that greps": ("exec", {"command": "grep -ra canar[y] . ; find . -name '*.jsonl'"}),
}


@pytest.mark.parametrize("call", LOOKS.values(), ids=LOOKS.keys())
async def test_a_turn_in_a_group_finds_nothing_that_was_told_in_private(
    tmp_path: Path, call: tuple[str, dict[str, Any]]
):
    if call[0] == "exec" and shutil.which("bwrap") is None:
        pytest.skip("no wall for commands here")
    told_in_private(tmp_path)
    async with open_bot(tmp_path, calls(call), "done", config=YES) as bot:
        shown = await shown_to_the_model(bot, in_group("look", "ann", provenance=Provenance.OWNER))

    assert CANARY not in shown
    assert "telegram_7-" not in shown
    assert "The group meets on Fridays." in shown


async def test_media_of_others_is_not_listed_and_what_was_sent_here_is_read_by_its_path(tmp_path: Path):
    told_in_private(tmp_path)
    sent = tmp_path / "media" / "telegram" / "cd34.txt"
    sent.write_text("words of the group", encoding="utf-8")
    listing = calls(("list_dir", {"path": str(sent.parent)}), ("grep", {"pattern": ".", "path": str(sent.parent)}))
    async with open_bot(tmp_path, listing, calls(("read_file", {"path": str(sent)})), "done", config=YES) as bot:
        shown = await shown_to_the_model(bot, in_group("look"))

    assert "ab12" not in shown
    assert "words of the group" in shown


async def test_a_chat_reads_and_writes_its_own_memory_and_not_its_log(tmp_path: Path):
    told_in_private(tmp_path)
    own = f"memory/{Scope(GROUP).folder}"
    MemoryStore(tmp_path / "workspace").of(Scope(GROUP)).append_history("We began.")
    script: list[Any] = [
        calls(("read_file", {"path": f"{own}/MEMORY.md"})),
        calls(("write_file", {"path": f"{own}/MEMORY.md", "content": "- On Mondays.\n"})),
        calls(("write_file", {"path": f"{own}/HISTORY.md", "content": "x"})),
        "done",
    ]
    async with open_bot(tmp_path, *script, config=YES) as bot:
        await shown_to_the_model(bot, in_group("remember", "ann", provenance=Provenance.OWNER))
        results = [row for row in bot.session(GROUP).messages if row["role"] == "tool"]

    assert "Fridays" in str(results[0]["content"])
    assert (tmp_path / "workspace" / own / "MEMORY.md").read_text(encoding="utf-8") == "- On Mondays.\n"
    assert "nanobot's own state" in str(results[2]["content"])
    assert "We began." in (tmp_path / "workspace" / own / "HISTORY.md").read_text(encoding="utf-8")


async def test_a_chat_reads_and_writes_the_notes_of_its_own_goals(tmp_path: Path):
    if shutil.which("bwrap") is None:
        pytest.skip("no wall for commands here")
    told_in_private(tmp_path)
    own = f"{Scope(GROUP).notes}/3fa9c1d2"
    look = calls(("read_file", {"path": f"{own}/found.md"}), ("exec", {"command": f"cat {own}/found.md > {own}/x.md"}))
    async with open_bot(tmp_path, look, "done", config=YES) as bot:
        shown = await shown_to_the_model(bot, in_group("look", "ann", provenance=Provenance.OWNER))

    assert "Bring cake." in shown
    assert (tmp_path / "workspace" / own / "x.md").read_text(encoding="utf-8") == "Bring cake."


async def test_the_owner_in_private_finds_what_they_told(tmp_path: Path):
    told_in_private(tmp_path)
    looks = [("read_file", {"path": "USER.md"}), ("read_file", {"path": "memory/HISTORY.md"})]
    async with open_bot(tmp_path, calls(*looks), "done") as bot:
        await bot.say("look")
        shown = json.dumps(bot.provider.requests, default=str)

    assert f"{CANARY} memory" in shown
    assert f"{CANARY} log" in shown
    assert f"{CANARY} note" in shown
    assert f"I am Ann, {CANARY}" in shown


async def test_a_group_hears_only_of_its_own_jobs(tmp_path: Path):
    looks = calls(("cron", {"action": "list"}), ("cron", {"action": "enable", "job_id": "00000000"}))
    schedule = CronSchedule(kind="every", every_ms=3_600_000)
    async with open_bot(tmp_path, looks, "done", config=ON_TELEGRAM) as bot:
        jobs = CronService(bot.workspace / "cron" / "jobs.json")
        jobs.add_job(CANARY, schedule, CANARY, True, "telegram", "7")
        jobs.add_job("Friday", schedule, "Friday!", True, "telegram", "-100")
        shown = await shown_to_the_model(bot, in_group("which jobs?", "ann", provenance=Provenance.OWNER))

    assert CANARY not in shown
    assert "Friday" in shown


async def test_without_a_wall_a_command_in_a_group_waits_for_the_owner(tmp_path: Path):
    told_in_private(tmp_path)
    bare = Config.model_validate({"tools": {"exec": {"sandbox": "none"}}})
    async with open_bot(tmp_path, calls(("exec", {"command": "cat USER.md"})), "done", config=bare) as bot:
        shown = await shown_to_the_model(bot, in_group("look", "ann", provenance=Provenance.OWNER))

    assert CANARY not in shown


@pytest.mark.parametrize("name", ["memory/MEMORY.md", "USER.md", "sessions/telegram_7.jsonl"])
def test_no_file_of_the_private_memory_is_sent_from_a_group(tmp_path: Path, name: str):
    told_in_private(tmp_path)
    workspace = tmp_path / "workspace"
    policy = PathPolicy(workspace, data_folder=tmp_path)
    clock = FrozenClock(datetime(2026, 2, 26, tzinfo=UTC))
    context = ToolContext(GROUP, Address("telegram", "-100"), "t", workspace, clock, scope=Scope(GROUP))

    with pytest.raises(PathDeniedError, match="holds private information"):
        opener(policy, context).resolve_sendable(name)


LEADING_AWAY = (
    "import os\n"
    f"here = 'memory/{Scope(GROUP).folder}/'\n"
    "links = {name: '../../MEMORY.md' for name in (here + 'MEMORY.md', here + 'ARCHIVE.md', here + '2026-01-01.md')}\n"
    "links |= {here + 'HISTORY.md': '../../HISTORY.md', 'IDENTITY.md': 'memory/MEMORY.md', 'AGENTS.md': 'USER.md'}\n"
    "for name, target in links.items():\n"
    "    if os.path.lexists(name): os.unlink(name)\n"
    "    os.symlink(target, name)\n"
)


async def test_a_link_that_a_command_of_a_group_left_leads_to_nobody_elses_memory(tmp_path: Path):
    if shutil.which("bwrap") is None:
        pytest.skip("no wall for commands here")
    told_in_private(tmp_path)
    program = b64encode(LEADING_AWAY.encode()).decode()
    run = calls(("exec", {"command": f'python3 -c "import base64; exec(base64.b64decode({program!r}))"'}))
    asked = ["/memory", "/memory search canary", "/memory why canary", "/memory forget canary-of", "/search canary"]
    async with open_bot(tmp_path, run, "done", "done", config=YES) as bot:
        await shown_to_the_model(bot, in_group("go", "ann", provenance=Provenance.OWNER))
        shown = await shown_to_the_model(bot, in_group("and now?", "ann", provenance=Provenance.OWNER))
        told = [(await bot.run_turn(in_group(line, "ann"))).text for line in asked]

    assert (tmp_path / "workspace" / "IDENTITY.md").is_symlink()
    assert CANARY not in shown
    assert CANARY not in "".join(told)
    assert CANARY in (tmp_path / "workspace" / "memory" / "MEMORY.md").read_text(encoding="utf-8")


async def test_the_state_that_a_group_is_told_names_no_other_chat_and_no_error_of_one(tmp_path: Path):
    failing = InvalidRequestError(f"{CANARY} is what telegram:7 asked for")
    pause = Pause()
    async with open_bot(tmp_path, failing, pause, config=ON_TELEGRAM) as bot:
        await bot.run_turn(InboundMessage("telegram", "7", "7", "fails"))
        running = asyncio.create_task(bot.run_turn(InboundMessage("telegram", "7", "7", "go on")))
        await pause.reached.wait()
        told = (await bot.run_turn(in_group("/status"))).text
        own = await bot.say("/status")
        await bot.stop("telegram:7")
        await running

    assert CANARY in own and "Running turns: telegram:7" in own
    assert CANARY not in told and "telegram:7" not in told
