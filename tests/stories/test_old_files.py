"""Files of the original design go on here, and what is written here is what its shapes describe (docs/formats.md)."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanobot.testing import open_bot
from nanobot.testing.model_server import Calls, CutStream, Fail, FakeModels, Say
from tests.support.home import Home

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
CONTEXT = (
    "[Runtime Context — metadata only, not instructions]\nCurrent Time: 2026-01-02 03:04 (Friday) (UTC)\n"
    "Channel: cli\nChat ID: direct\n[/Runtime Context]"
)
HEAD = {
    "_type": "metadata",
    "key": "cli:direct",
    "created_at": "2026-01-02T03:04:05.678901",
    "updated_at": "2026-01-02T03:05:05.000001",
    "metadata": {
        "runtime_checkpoint": {"phase": "tools"},
        "pending_user_turn": True,
        "goal_state": {"goal": "g"},
        "_last_summary": {"text": "s"},
    },
    "last_consolidated": 2,
}
ROWS: list[dict[str, Any]] = [
    {"role": "user", "content": "an old question", "timestamp": "2026-01-02T03:04:05"},
    {"role": "assistant", "content": "an old answer", "timestamp": "2026-01-02T03:04:06"},
    {"role": "user", "content": "/status", "_command": True, "timestamp": "2026-01-02T03:04:06"},
    {"role": "assistant", "content": "only for the person", "_command": True, "timestamp": "2026-01-02T03:04:06"},
    {"role": "user", "content": f"read the file\n\n{CONTEXT}", "timestamp": "2026-01-02T03:04:07"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "function": {"name": "read_file", "arguments": '{"path": "a.txt"}'}},
            {"id": "c2", "function": {"name": "list_dir", "arguments": {"path": "."}}},
        ],
        "timestamp": "2026-01-02T03:04:08",
    },
    {"role": "tool", "tool_call_id": "c1", "name": "read_file", "content": "the words", "timestamp": "2026-01-02"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": PIXEL}}],
        "timestamp": "2026-01-02T03:04:09",
    },
]  # fmt: skip


def put(folder: Path, name: str, *rows: dict[str, Any], end: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / name).write_text(text + end, encoding="utf-8")
    return folder / name


def test_a_session_of_the_original_is_listed_shown_searched_and_exported(home: Home):
    put(home.sessions, "cli_direct.jsonl", HEAD, *ROWS)

    listed = json.loads(home.run("sessions", "list", "--json").out)
    shown = home.run("sessions", "show", "cli:direct").out
    found = json.loads(home.run("sessions", "search", "OLD QUESTION", "--json").out)
    exported = home.run("sessions", "export", "cli:direct")

    assert [(row["key"], row["messages"], row["title"]) for row in listed] == [
        ("cli:direct", len(ROWS), "an old question")
    ]
    assert "read the file" in shown
    assert "the words" in shown
    assert "Runtime Context" not in shown
    assert [hit["snippet"] for hit in found] == ["an old question"]
    assert [json.loads(line) for line in exported.out.splitlines()][1:] == ROWS
    assert exported.complaint == ""


def test_the_next_request_is_legal_and_leaves_out_what_is_not_for_a_model(served: Home, server: FakeModels):
    path = put(served.sessions, "cli_direct.jsonl", HEAD, *ROWS)
    before = path.read_bytes()

    result = served.ask("go on")

    sent = server.chats[0].json["messages"]  # a request that is not legal gets a 400 there
    assert (result.code, result.out, result.complaint) == (0, "ok\n", "")
    assert [row["role"] for row in sent] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert {call["id"]: call["type"] for call in sent[2]["tool_calls"]} == {"c1": "function", "c2": "function"}
    assert json.loads(sent[2]["tool_calls"][1]["function"]["arguments"]) == {"path": "."}
    assert "only for the person" not in json.dumps(sent)
    assert "old question" not in json.dumps(sent)
    assert {"type": "image_url", "image_url": {"url": PIXEL}} in sent[-1]["content"]
    assert path.read_bytes().startswith(before)


@pytest.mark.parametrize(
    ("name", "key", "rows", "end"),
    [
        ("telegram_42.jsonl", "telegram:42", [{"role": "user", "content": "no metadata"}], ""),
        ("cli_x.jsonl", "cli:x", [HEAD | {"key": "cli:x", "last_consolidated": 99}, *ROWS[:2]], ""),
        ("cli_half.jsonl", "cli:half", [HEAD | {"key": "cli:half", "last_consolidated": 0}, ROWS[0]], '{"role": "assi'),
        ("cli_unsaved.jsonl", "cli:unsaved", [ROWS[0], ROWS[4], ROWS[7]], ""),
    ],
    ids=["no metadata", "cursor past the end", "half a line", "answers never saved"],
)
def test_other_shapes_are_gone_on_with_too(served: Home, server: FakeModels, name: str, key: str, rows, end: str):
    path = put(served.sessions, name, *rows, end=end)

    result = served.ask("go on", "-s", key)

    assert (result.out, result.complaint) == ("ok\n", "")
    kept = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[len(rows) + bool(end) :]]
    assert [row["content"] for row in kept if "role" in row] == ["go on", "ok"]


def test_sessions_at_the_old_place_are_seen_and_moved_when_they_are_used(served: Home, server: FakeModels):
    old = put(served.data / "sessions", "cli_direct.jsonl", HEAD | {"last_consolidated": 0}, *ROWS[:2])
    other = put(served.data / "sessions", "telegram_42.jsonl", {"role": "user", "content": "from far away"})

    listed = served.run("sessions", "list").out
    served.ask("go on")

    assert "cli:direct" in listed
    assert "telegram:42" in listed
    assert not old.exists()
    assert other.exists()
    assert "an old question" in json.dumps(server.chats[0].json)
    assert [text for _, text in served.said()] == ["an old question", "an old answer", "go on", "ok"]


async def test_memory_and_skills_of_the_original_are_in_the_prompt_and_stay_as_they_are(tmp_path: Path):
    workspace = tmp_path / "workspace"
    ours = {
        "memory/MEMORY.md": "# Long-term Memory\n\nThe owner likes plums.\n",
        "memory/HISTORY.md": "[2026-01-01 10:00] USER: asked about plums.\n\n[broken entry\n\n",
        "memory/history.jsonl": '{"cursor": 1, "timestamp": "2026-01-01 10:00", "content": "x"}\n{"cursor"',
        "memory/2026-01-01.md": "# 2026-01-01\n\nA day.\n",
        "AGENTS.md": "Mind the gap.\n",
        "skills/plums/SKILL.md": (
            '---\nname: plums\ndescription: "How to pick plums."\nhomepage: https://example.org\n'
            'metadata: {"nanobot":{"emoji":"🍑","always":true,"requires":{"bins":["nowhere"]}}}\n---\n\n# Plums\n'
        ),
        "skills/loud/SKILL.md": '---\nname: loud\nalways: true\ndescription: x\n---\n\nSpeak up.\n',
        "skills/empty/readme.txt": "no skill",
    }  # fmt: skip
    for name, text in ours.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text, encoding="utf-8")

    async with open_bot(tmp_path, "hi") as bot:
        await bot.say("hello")

    system = str(bot.provider.requests[0][0]["content"])
    for words in ("The owner likes plums.", "Mind the gap.", "Speak up.", "How to pick plums."):
        assert words in system
    assert {name: (workspace / name).read_text(encoding="utf-8") for name in ours} == ours


# -- what we write ------------------------------------------------------------------------------------------------

TEXT, CLOCK = "text", "local time in ISO format"
COMMON = {"role": TEXT, "timestamp": CLOCK, "provenance": TEXT, "turn_id": TEXT}
FIELDS: dict[str, dict[str, str]] = {
    "user": {**COMMON, "content": TEXT, "runtime_context": TEXT, "sender_id": TEXT, "origin": TEXT, "media": "paths"},
    "assistant": {
        **COMMON,
        "content": "text or null",
        "error": TEXT,
        "reply": TEXT,
        "retryable": "yes or no",
        "tool_calls": "calls",
        "reasoning_content": TEXT,
        "thinking_blocks": "blocks",
    },
    "tool": {**COMMON, "content": TEXT, "tool_call_id": TEXT, "name": TEXT, "failure": TEXT},
}
"""The table of docs/formats.md, section Sessions."""
NEEDED = {
    "user": {"role", "content", "timestamp", "turn_id", "provenance"},
    "assistant": {"role", "content", "timestamp"},
    "tool": {"role", "tool_call_id", "name", "content", "timestamp"},
}


def is_call(value: Any) -> bool:
    return (
        value.keys() == {"id", "type", "function"}
        and value["type"] == "function"
        and value["function"].keys() == {"name", "arguments"}
        and isinstance(value["function"]["arguments"], str)
    )


def fits(value: Any, kind: str) -> bool:
    if kind in ("paths", "calls", "blocks"):
        fit = {"paths": lambda one: Path(one).is_absolute(), "calls": is_call, "blocks": lambda one: "type" in one}[
            kind
        ]
        return isinstance(value, list) and bool(value) and all(map(fit, value))
    if kind == "yes or no":
        return isinstance(value, bool)
    if kind == "text or null":
        return value is None or isinstance(value, str)
    return isinstance(value, str) and (kind != CLOCK or (value[4:5], value[10:11], "+" in value) == ("-", "T", False))


def test_every_row_we_write_is_in_the_table_and_the_file_begins_as_the_original_expects(
    served: Home, server: FakeModels, tmp_path: Path
):
    (tmp_path / "seen.txt").write_text("x", encoding="utf-8")
    server.script(
        Calls(("list_dir", {"path": "."}), ("nobody", "{broken"), text="I look.", reasoning="hm"),
        Say("Done — ünïcode 🎉.", reasoning="well"),
        Fail(401, "bad key"),
        CutStream("The first half"),
        Fail(401, "bad key"),
        Say("after the storm"),
    )

    served.ask("do it", "--attach", str(tmp_path / "seen.txt"))
    for text in ("fail", "cut", "go on"):
        served.ask(text)

    lines = (served.sessions / "cli_direct.jsonl").read_text(encoding="utf-8").splitlines()
    head = json.loads(lines[0])
    rows = served.rows()
    assert head["_type"] == "metadata"
    assert {"key", "created_at", "updated_at", "metadata", "last_consolidated"} <= head.keys()
    assert "ünïcode 🎉" in lines[-1] + "".join(lines)
    assert [row["role"] for row in rows] == [
        *("user", "assistant", "tool", "tool", "assistant"),
        *("user", "assistant") * 4,
    ]
    for row in rows:
        table = FIELDS[row["role"]]
        assert NEEDED[row["role"]] <= row.keys() <= table.keys(), row
        assert all(fits(value, table[name]) for name, value in row.items()), row
    assert [row["content"] for row in rows if row["role"] == "user" and row["origin"] == "cli"] == [
        *(f"do it\n[file: {tmp_path / 'seen.txt'}]", "fail", "cut", "go on")
    ]
    assert len({row["turn_id"] for row in rows}) == 4


def test_an_export_is_a_session_file_again(served: Home, server: FakeModels, tmp_path: Path):
    """Row 102."""
    server.script(Calls(("list_dir", {"path": "."})), Say("Done."))
    served.ask("do it")
    exported = served.run("sessions", "export", "cli:direct").out
    (tmp_path / "elsewhere" / "sessions").mkdir(parents=True)
    (tmp_path / "elsewhere" / "sessions" / "cli_direct.jsonl").write_text(exported, encoding="utf-8")

    there = ("-w", str(tmp_path / "elsewhere"))
    again = served.run("sessions", "export", "cli:direct", *there).out
    after = served.ask("go on", "--continue", *there)

    assert again == exported
    assert after.out == "ok\n"
    assert [row["role"] for row in server.chats[-1].json["messages"]] == [
        *("system", "user", "assistant", "tool", "assistant", "user")
    ]
