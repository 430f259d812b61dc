"""Session files that a person has renamed, copied or saved with an editor: nothing is lost, and it is said once."""

import json
from pathlib import Path

import pytest

from nanobot.agent.events import Notice
from nanobot.session.manager import SessionManager
from nanobot.testing import Bot, open_bot

RECORD = {"_type": "metadata", "key": "cli:direct", "created_at": "2026-11-22T09:00:00", "metadata": {}}
ROWS = [{"role": "user", "content": "grün is my colour"}, {"role": "assistant", "content": "Noted."}]


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace" / "sessions"
    folder.mkdir(parents=True)
    return folder


def lines(*rows: object) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def notices(bot: Bot) -> list[str]:
    return [event.text for event in bot.sink.events if isinstance(event, Notice)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
async def test_session_saved_in_utf_16_goes_on_in_utf_8(tmp_path: Path, sessions: Path, encoding: str):
    file = sessions / "cli_direct.jsonl"
    file.write_bytes(lines(RECORD, *ROWS).encode(encoding))

    async with open_bot(tmp_path, "green", "bye") as bot:
        await bot.say("which colour?")
        asked = str(bot.provider.requests[0])
        await bot.say("thanks")

    assert "grün is my colour" in asked
    assert len(notices(bot)) == 1
    assert "was saved in UTF-16" in notices(bot)[0]
    assert [str(row["content"]) for row in SessionManager(tmp_path / "workspace").get_or_create("cli:direct").messages][
        ::2
    ] == ["grün is my colour", "which colour?", "thanks"]
    assert file.read_text(encoding="utf-8").startswith('{"_type"')
    assert (sessions / "cli_direct.jsonl.utf-16").read_bytes() == lines(RECORD, *ROWS).encode(encoding)


def test_session_saved_in_utf_16_is_shown(sessions: Path):
    (sessions / "cli_direct.jsonl").write_bytes(lines(RECORD, *ROWS).encode("utf-16"))

    shown = SessionManager(sessions.parent).read("cli:direct")

    assert shown is not None
    assert [row["content"] for row in shown.messages] == ["grün is my colour", "Noted."]


async def test_file_that_names_another_key_is_reported_once(
    tmp_path: Path, sessions: Path, caplog: pytest.LogCaptureFixture
):
    (sessions / "phone_7.jsonl").write_text(lines(RECORD, *ROWS), encoding="utf-8")

    async with open_bot(tmp_path, "one", "two") as bot:
        await bot.say("hello", session="phone:7")
        await bot.say("again", session="phone:7")
    async with open_bot(tmp_path, "three") as later:
        await later.say("and now", session="phone:7")

    assert len(notices(bot)) == 1
    assert "belongs to the session cli:direct" in notices(bot)[0]
    assert "nanobot sessions show phone_7" in notices(bot)[0]
    assert notices(later) == []
    assert caplog.text.count("belongs to the session cli:direct") == 1
    assert (sessions / "phone_7.jsonl").read_text(encoding="utf-8") == lines(RECORD, *ROWS)
    shown = SessionManager(sessions.parent).read("phone_7")
    assert shown is not None
    assert [row["content"] for row in shown.messages] == ["grün is my colour", "Noted."]


async def test_keys_that_share_a_file_name_are_no_news(tmp_path: Path):
    async with open_bot(tmp_path, "one", "two") as bot:
        await bot.say("hello", session="phone:7")
        await bot.say("hello", session="phone_7")

    assert notices(bot) == []
