"""An owner, two people and a group that write to one gateway on Telegram and Slack, and a model that is of no help.

The model does whatever it is told, looks everywhere for words of others, and says all secrets that it is shown. Each
answer is made of the request alone, so that the gateway can be killed at any moment.
"""

import inspect
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from nanobot.testing.model_server import Calls, Say, Step
from tests.fakes.people import Mouths, OnPlatform, heard
from tests.fakes.platform_telegram import TelegramPlatform
from tests.fakes.slack import APP_TOKEN, BOT_TOKEN, Room, SlackPlatform
from tests.fakes.telegram import TOKEN as TELEGRAM_TOKEN
from tests.programs import watching_hooks
from tests.support.plugin_package import install
from tests.support.toy_gateway import GatewayHome

HALL = "-1001234567890"
WHO = {"owner": "1000", "ann": "1001", "bob": "D0P0", "group": HALL}
"""Whose each chat is."""
MAY_KNOW = {"owner": {"owner", "group"}, "ann": {"ann"}, "bob": {"bob"}, "group": {"group"}}
"""An owner's search finds what was said in groups."""
SEATS = {"owner": ("telegram", 0), "ann": ("telegram", 1), "group": ("telegram", 2), "bob": ("slack", 0)}
"""Where each writes: a channel, and a number there. In the group it is Ann who does."""
OWNER_IN_GROUP = ("telegram", 3)

_PLACE = re.compile(r"(?:Chat ID: |for chat )([-\w]+)")
_TASK = "Your task:"
_LOOKS: list[tuple[str, dict[str, Any]]] = [
    ("session_search", {"query": "canary"}),
    ("session_search", {"query": "secret", "around": 2}),
    ("grep", {"pattern": "canar[y]"}),
    ("grep", {"pattern": "canar[y]", "path": "sessions"}),
    ("grep", {"pattern": "canar[y]", "path": "memory"}),
    *(("read_file", {"path": path}) for path in ("memory/MEMORY.md", "memory/HISTORY.md", "USER.md")),
]
_SKILL = ("read_file", {"path": "skills/tea/SKILL.md"})


def known_in(text: str) -> set[str]:
    """Whose canaries stand in it."""
    return {who for who in WHO if f"canary-{who}" in text}


@dataclass
class Obedient:
    """The model. What it was shown is kept, with whose request it was."""

    shown: list[tuple[str, str]] = field(default_factory=list)
    beats: int = 0
    asked_for: list[str] = field(default_factory=list)
    """Which of the tools that stand alone a request had: `save_memory`, `tidy_memory`, `heartbeat`."""

    def __call__(self, body: dict[str, Any]) -> Step:
        rows = [(row["role"], _text(row)) for row in body["messages"]]
        shown = "\n".join(text for _, text in rows)
        tools = [one["function"]["name"] for one in body.get("tools", ())]
        if tools in (["save_memory"], ["tidy_memory"], ["heartbeat"]):
            self.asked_for += tools
            self.shown.append(("memory" if tools != ["heartbeat"] else "owner", shown))
            return self._alone(tools[0], rows[-1][1])
        people = [text for role, text in rows if role == "user" and _PLACE.search(text)]
        said = people[-1]
        who = next(who for who, chat in WHO.items() if chat == _PLACE.findall(said)[-1])
        self.shown.append((who, shown))
        return self._turn(body, rows, said, who) or heard(body, before=_knows(shown))

    def _alone(self, tool: str, material: str) -> Step:
        """Every line into memory, the log and the note; nothing is tidied; there is always something to do."""
        if tool == "tidy_memory":
            return Calls((tool, {"edits": []}))
        if tool == "heartbeat":
            self.beats += 1
            tasks = f"beat-{self.beats} for chat {WHO['owner']}"
            return Calls((tool, {"action": "run", "tasks": tasks, "again_in_minutes": 24 * 60}))
        memory = material.partition("# MEMORY.md as it stands\n\n")[2].partition("\n\n# ")[0]
        knows = _knows(material)
        facts = f"{'' if memory == '(empty)' else memory}\n- {knows}"
        told = {"history_entry": f"Talked of {knows}.", "memory_update": facts, "handover": knows or "-"}
        return Calls((tool, told))

    def _turn(self, body: dict[str, Any], rows: list[tuple[str, str]], said: str, who: str) -> Step | None:
        """What it calls; None where it is to speak."""
        at = max(at for at, (role, text) in enumerate(rows) if text == said)
        steps = sum(role == "tool" for role, _ in rows[at:])
        looks = [one for one in _LOOKS if who != "owner" or one[0] == "session_search"]  # the files are theirs
        if "[Goal, turn" in said:
            made = f"goal-{who}.md"
            scripts: list[Step] = [
                Calls(*looks),
                Calls(("write_file", {"path": made, "content": "reached"}), ("goal", {"action": "note", "done": "it"})),
                Calls(("goal", {"action": "finish", "check": f"file: {made}"})),
            ]
            calls = [0, len(looks), len(looks) + 2]
            return scripts[calls.index(steps)] if steps in calls else None
        unknown = sum(role == "tool" and text.startswith("Outcome unknown") for role, text in rows[at:])
        if steps > unknown or (steps and not said.startswith("spawn")):  # which is safe to call again
            return None
        if beat := re.search(r"beat-\d+(?= for chat)", said):
            return Say(f"{beat[0]} is done")
        is_child = any(role == "user" and text.startswith(_TASK) for role, text in rows)
        word = "look" if is_child else said.split(maxsplit=1)[0].removeprefix("@nano_test_bot").strip()
        task = f"look for chat {WHO[who]} as {'-'.join(re.findall(r'q([0-9]+)', said))}"
        job = f"job-{who} for chat {WHO[who]}: canary-{who}"
        wanted: dict[str, list[tuple[str, dict[str, Any]]]] = {
            "look": looks,
            "spawn": [("spawn", {"task": task})],
            "job": [("cron", {"action": "add", "message": job, "every_seconds": 3600})],
            "brew": [_SKILL],
        }
        return Calls(*wanted[word]) if word in wanted else None


def _knows(shown: str) -> str:
    told = sorted(set(re.findall(r"canary-\w+|job-\w+|Boil the water", shown)))
    return " ".join(told)


def _text(row: dict[str, Any]) -> str:
    content = row["content"] or ""
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)


@asynccontextmanager
async def company(home: GatewayHome) -> AsyncIterator[dict[str, Mouths]]:
    """Everybody at their places, and a home with everything switched on."""
    async with AsyncExitStack() as there:
        telegram = await there.enter_async_context(TelegramPlatform(home.path).open())
        for number in (1000, 1001):
            telegram.server.people[number] = {"id": number, "is_bot": False, "first_name": f"P{number}"}
            telegram.server.chats[number] = {"id": number, "type": "private", "first_name": f"P{number}"}
        slack = await there.enter_async_context(SlackPlatform(home.path).open())
        slack.workspace.rooms["D0P0"] = Room("D0P0", "im")
        bot = {"token": TELEGRAM_TOKEN, "apiBase": telegram.server.url}
        app = {"botToken": BOT_TOKEN, "appToken": APP_TOKEN, "apiBase": f"{slack.workspace.url}/api"}
        mouths: dict[str, Mouths] = {
            "telegram": OnPlatform(telegram, bot, ["1000", "1001", "1001", "1000"], ["1000", "1001", HALL, HALL]),
            "slack": OnPlatform(slack, app, ["U0P0"], ["D0P0"]),
        }
        _switch_on(home, mouths)
        yield mouths


def _switch_on(home: GatewayHome, mouths: dict[str, Mouths]) -> None:
    install(
        home.path / "site",
        "watcher",
        inspect.getsource(watching_hooks),
        {"hooks": {"watches": "Watches", "changes": "Changes"}},
    )
    heart = {"intervalS": 1, "channel": "telegram", "to": WHO["owner"]}
    defaults = {**home.config["agents"]["defaults"], "memoryWindow": 16, "dream": {"cron": "0 4 * * *"}}
    home.change(
        agents={"defaults": defaults},
        channels={name: one.section() for name, one in mouths.items()},
        gateway={**home.config["gateway"], "heartbeat": heart},
        plugins={"enabled": ["watcher"], "watcher": {"seen": str(home.path / "seen")}},
        tools={"approval": "off"},
    )
    owners = {"telegram": ["1000"], "slack": ["U0OWNER"]}  # who is let in alone would be the owner
    (home.data / "pairing.json").write_text(json.dumps({"owners": owners}), encoding="utf-8")
    skill = home.workspace / "skills" / "tea" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: tea\ndescription: Make tea.\n---\nBoil the water.\n", encoding="utf-8")
    (home.workspace / "HEARTBEAT.md").write_text("- see to everything\n", encoding="utf-8")
    (home.workspace / "USER.md").write_text("I am canary-owner.\n", encoding="utf-8")
