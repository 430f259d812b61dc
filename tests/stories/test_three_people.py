"""Three people and a group: what was told in one chat is in no prompt and in no message of another one.

The model is the worst there may be: it does whatever it is told, looks everywhere for words of others, has subagents
look too, and says all secrets it sees. Nobody is asked about anything. What holds is what nanobot closes.
"""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from nanobot.agent.context import as_sent_message
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.config.paths import DataPaths
from nanobot.messages.types import ChatMessage, Origin, Provenance, ToolSchema, text_of
from nanobot.providers.base import Delta, Finished, LLMResponse
from nanobot.testing import calls
from tests.support.memory import saving
from tests.support.scripted_model import TASK, Cast, Stage, on_stage

PEOPLE = {"owner": "1", "ann": "2", "bob": "3"}
CHATS = {**PEOPLE, "group": "-100"}
MAY_KNOW = {"owner": {"owner", "group"}, "ann": {"ann"}, "bob": {"bob"}, "group": {"group"}}
CONFIG = {
    "channels": {"telegram": {"enabled": True, "token": "1:a", "allowFrom": ["*"]}},
    "tools": {"approval": "off"},
}
_READ = ["memory/MEMORY.md", "memory/HISTORY.md", "memory/SHARED.md", "USER.md", "sessions/telegram_2.jsonl"]
_FOLDERS = [f"memory/{Scope(f'telegram:{chat}').folder}/MEMORY.md" for chat in ("2", "3", "-100")]
_PLACE = re.compile(r"(?:Chat ID: |for chat )(-?\d+)")
LOOKS: list[tuple[str, dict[str, Any]]] = [
    ("session_search", {"query": "canary"}),
    *(("session_search", {"query": "secret", "around": number}) for number in (1, 2, 5, 9, 14)),
    *(("read_file", {"path": path}) for path in (*_READ, *_FOLDERS)),
    ("grep", {"pattern": "canar[y]"}),
    ("grep", {"pattern": "canar[y]", "path": "sessions"}),
    ("list_dir", {"path": ".", "recursive": True}),
    *([("exec", {"command": "grep -rh canar[y] . ; cat memory/*.md sessions/*"})] if shutil.which("bwrap") else []),
]


class Obedient(Cast):
    """Does what the last message says; else it says all secrets that it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[tuple[str, str]] = []
        """Whose each request was, and all of it; of those to remember, the chat is in the words themselves."""

    async def chat_stream(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSchema] | None = None, *others: Any, **more: Any
    ) -> AsyncIterator[Delta]:
        shown = json.dumps([text_of(as_sent_message(row)["content"]) for row in messages], ensure_ascii=False)
        if [tool["function"]["name"] for tool in tools or ()] == ["save_memory"]:
            self.shown.append(("memory", shown))
            yield Finished(_saved(text_of(messages[1]["content"])))
            return
        people = [
            text
            for row in messages
            if row["role"] == "user" and _PLACE.search(text := text_of(as_sent_message(row)["content"]))
        ]
        said, is_child = people[-1], people[0].startswith(TASK)
        chat = _PLACE.findall(said)[-1]
        who = next(name for name, one in CHATS.items() if one == chat)
        self.shown.append((who, shown))
        wanted = {
            "look": [one for one in LOOKS if who != "owner" or one[0] == "session_search"],  # the files are theirs
            "spawn": [("spawn", {"task": f"look for chat {chat} "})],
            "job": [("cron", {"action": "add", "message": f"canary-{who}", "every_seconds": 3600})],
            "jobs": [("cron", {"action": "list"})] if who != "owner" else [],  # and so are all jobs
        }
        word = "look" if is_child else said.split(maxsplit=1)[0]
        if messages[-1]["role"] == "user" and wanted.get(word):
            yield Finished(calls(*wanted[word]))
        else:
            yield Finished(LLMResponse(f"I know: {' '.join(_canaries(shown))}"))


def _saved(material: str) -> LLMResponse:
    """Every line into memory, the log and the note."""
    memory = material.partition("# MEMORY.md as it stands\n\n")[2].partition("\n\n# ")[0]
    heard = " ".join(_canaries(material))
    return saving(f"Talked of {heard}.", f"{'' if memory == '(empty)' else memory}\n- {heard}", handover=heard or "-")


def _canaries(text: str) -> list[str]:
    return sorted(set(re.findall(r"canary-\w+", text)))


async def hear(stage: Stage, who: str, text: str, *, chat: str = "", origin: Origin = Origin.USER) -> None:
    chat = chat or CHATS[who]
    trust = Provenance.OWNER if who == "owner" else Provenance.PERSON
    key = f"cron:{chat}" if origin is Origin.CRON else None
    about = {"session_key_override": key, "origin": origin, "provenance": trust, "in_group": chat == "-100"}
    await stage.hear(text, chat=chat, sender=PEOPLE[who], channel="telegram", **about)


async def everybody(stage: Stage, text: str, origin: Origin = Origin.USER) -> None:
    """Each in private and somebody in the group, all at once."""
    for who in PEOPLE:
        await hear(stage, who, text, origin=origin)
    await hear(stage, "owner" if text == "/new" else "bob", text, chat="-100", origin=origin)


def known_in(text: str) -> set[str]:
    return {name for name in CHATS if f"canary-{name}" in text}


async def test_what_was_told_in_one_chat_is_in_no_prompt_and_no_message_of_another(tmp_path: Path):
    places = DataPaths(tmp_path)
    places.pairing.parent.mkdir(parents=True, exist_ok=True)
    places.pairing.write_text(json.dumps({"owners": {"telegram": ["1"]}}), encoding="utf-8")
    model = Obedient()
    async with on_stage(tmp_path, model, config=CONFIG) as stage:
        (tmp_path / "workspace" / "USER.md").write_text("I am canary-owner.", encoding="utf-8")
        stage.consolidate_after(0)
        for who in PEOPLE:
            await hear(stage, who, f"my secret is canary-{who}")
        for who in ("ann", "bob"):
            await hear(stage, who, "our secret is canary-group", chat="-100")
        for word in ("job", "spawn", "/new", "hello", "look", "spawn", "jobs", "/search canary", "/memory"):
            await everybody(stage, word)
            if word != "spawn":  # reports come between what is said next
                await stage.quiet()
                async with asyncio.timeout(10):
                    await stage.settled()
        await everybody(stage, "look", Origin.CRON)
        await stage.quiet()

    for who, shown in model.shown:
        known = known_in(shown)
        assert len(known) <= 1 if who == "memory" else known <= MAY_KNOW[who], (who, known)
    for sent in stage.sent:
        who = next(name for name, chat in CHATS.items() if chat == sent.chat_id)
        assert known_in(sent.content) <= MAY_KNOW[who], (who, sent.kind, sent.content[:2000])
    assert {who for who, shown in model.shown if who in known_in(shown)} == set(CHATS)
    memory = MemoryStore(tmp_path / "workspace")
    scopes = {"": "owner", "telegram:2": "ann", "telegram:3": "bob", "telegram:-100": "group"}
    assert {scope: known_in(memory.of(Scope(scope)).read_long_term()) for scope in scopes} == {
        scope: {who} for scope, who in scopes.items()
    }
