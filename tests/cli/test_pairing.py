"""`nanobot pairing`: the owner's side, in the terminal."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app

PAIRING = ".nanobot/pairing.json"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["pairing", *words])


def rows() -> Any:
    return json.loads(run("list", "--json").stdout)


def asked(*people: tuple[str, str]) -> list[str]:
    """These people, by channel and id, wrote to the bot. Their codes."""
    path, now = Path.home() / PAIRING, time.time()
    path.parent.mkdir(exist_ok=True)
    pending = {
        f"ABCDEFG{number}": {"channel": channel, "sender_id": who, "created_at": now, "expires_at": now + 500}
        for number, (channel, who) in enumerate(people, 2)
    }
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**stored, "pending": pending}), encoding="utf-8")
    return [*pending]


def stored() -> Any:
    return json.loads((Path.home() / PAIRING).read_text(encoding="utf-8"))


def test_at_first_there_is_nobody_and_nothing_is_made():
    result = run("list")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "pairing approve CODE" in result.stderr
    assert rows() == []
    assert list(Path.home().iterdir()) == []


def test_a_stranger_is_approved_as_owner_or_as_a_person_whom_a_missing_owner_is_told():
    code, other = asked(("telegram", "111"), ("slack", "U1"))

    owner, person = run("approve", code.lower(), "--owner"), run("approve", other)

    assert owner.stdout == "111 on telegram may talk to the bot now, as owner.\n"
    assert "has no owner" not in owner.stderr and "slack has no owner yet" in person.stderr
    assert stored()["owners"] == {"telegram": ["111"]}
    assert stored()["approved"]["slack"] == ["U1"]


def test_everybody_is_listed_until_denied_or_revoked():
    asked(("telegram", "111"), ("slack", "U1"), ("telegram", "222"))
    run("approve", "ABCDEFG2", "--owner")
    run("approve", "ABCDEFG3")

    lines = [line.split("\t")[:4] for line in run("list").stdout.splitlines()]
    states = [row["state"] for row in rows()]
    ends = [run("revoke", "Telegram", "111").stdout, run("deny", "ABCDEFG4").stdout]

    assert lines == [
        ["slack", "U1", "approved", ""],
        ["telegram", "111", "owner", ""],
        ["telegram", "222", "waiting", "ABCDEFG4"],
    ]
    assert states == ["approved", "owner", "waiting"]
    assert "was: owner" in ends[0] and "denied" in ends[1]
    assert [row["channel"] for row in rows()] == ["slack"]


def test_who_is_revoked_but_listed_in_the_config_may_still_speak_and_that_is_said():
    run("approve", *asked(("telegram", "111")))
    config = Path.home() / ".nanobot/config.json"
    config.write_text('{"channels": {"telegram": {"allowFrom": ["111"]}}}', encoding="utf-8")

    assert "channels.telegram.allowFrom" in run("revoke", "telegram", "111").stderr


def test_no_strangers_id_steers_the_owners_terminal():
    (code,) = asked(("tele\x9b2J", "Ann\x1b]0;mine\x07\x9b2J\x1b[2Jx\ny"))

    shown = [run("list"), run("list", "--json"), run("approve", code), run("list")]

    assert not {"\x1b", "\x07", "\x9b"} & {*"".join(one.output for one in shown)}
    assert len(shown[0].stdout.splitlines()) == 1


@pytest.mark.parametrize("words", [("approve", "ABCDEFGH"), ("deny", "ABCDEFGH"), ("revoke", "telegram", "1")], ids=str)
def test_what_is_not_there_is_an_error_with_the_next_step_and_a_damaged_file_is_kept(words: tuple[str, ...]):
    missing = run(*words)
    made = (Path.home() / PAIRING).exists()
    asked()
    (Path.home() / PAIRING).write_text('{"owners": 5}', encoding="utf-8")
    damaged = run(*words)

    assert (missing.exit_code, "pairing list" in missing.stderr, made) == (1, True, False)
    assert damaged.exit_code == run("list").exit_code == 1
    assert PAIRING in damaged.stderr and "owners: " in damaged.stderr
    assert stored() == {"owners": 5}
