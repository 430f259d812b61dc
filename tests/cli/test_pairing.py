"""`nanobot pairing`: the owner's side, in the terminal."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from nanobot.config.paths import DataPaths
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingStore, Role

ANNA = Sender.of("111")


def home() -> Path:
    return Path.home() / ".nanobot"


@pytest.fixture
def store() -> PairingStore:
    """As the gateway has it."""
    return PairingStore(DataPaths(home()))


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["pairing", *words])


def as_json(*words: str) -> Any:
    return json.loads(run(*words, "--json").stdout)


def code_for(store: PairingStore, channel: str, sender_id: str) -> str:
    asked = store.ask(channel, Sender.of(sender_id))
    assert asked is not None
    return asked.code


def test_at_first_there_is_nobody_and_nothing_is_made():
    result = run("list")

    assert result.exit_code == 0
    assert result.stdout == ""
    assert "pairing approve CODE" in result.stderr
    assert as_json("list") == []
    assert not home().exists()


def test_a_stranger_is_approved_as_owner_and_the_gateway_knows_at_once(store: PairingStore):
    code = code_for(store, "telegram", "111")

    result = run("approve", code.lower(), "--owner")

    assert result.stdout == "111 on telegram may talk to the bot now, as owner.\n"
    assert store.people("telegram").role_of(ANNA) is Role.OWNER
    assert "Nobody is owner" not in result.stderr


def test_who_approves_somebody_where_nobody_is_owner_is_told_so(store: PairingStore):
    result = run("approve", code_for(store, "telegram", "111"))

    assert "telegram has no owner yet" in result.stderr
    assert store.people("telegram").role_of(ANNA) is Role.PERSON


def test_no_strangers_id_steers_the_owners_terminal(store: PairingStore):
    code = code_for(store, "tele\x9b2J", "Ann\x1b]0;mine\x07\x9b2J")

    shown = [run("list"), run("list", "--json"), run("approve", code), run("list")]

    assert not {"\x1b", "\x07", "\x9b"} & {*"".join(one.output for one in shown)}


def test_everybody_is_listed_in_lines_and_as_json(store: PairingStore):
    run("approve", code_for(store, "telegram", "111"), "--owner")
    run("approve", code_for(store, "slack", "U1"))
    code = code_for(store, "telegram", "222")

    lines = [line.split("\t")[:4] for line in run("list").stdout.splitlines()]

    assert lines == [
        ["slack", "U1", "approved", ""],
        ["telegram", "111", "owner", ""],
        ["telegram", "222", "waiting", code],
    ]
    assert [row["state"] for row in as_json("list")] == ["approved", "owner", "waiting"]
    assert as_json("list")[2]["expires_at"] > as_json("list")[2]["created_at"]


def test_who_is_denied_or_revoked_is_no_longer_listed(store: PairingStore):
    run("approve", code_for(store, "telegram", "111"))

    assert "was: person" in run("revoke", "Telegram", "111").stdout
    assert "denied" in run("deny", code_for(store, "telegram", "222")).stdout
    assert as_json("list") == []


def test_who_is_revoked_but_listed_in_the_config_may_still_speak_and_that_is_said(store: PairingStore):
    run("approve", code_for(store, "telegram", "111"))
    (home() / "config.json").write_text('{"channels": {"telegram": {"allowFrom": ["111"]}}}', encoding="utf-8")

    result = run("revoke", "telegram", "111")

    assert result.exit_code == 0
    assert "channels.telegram.allowFrom" in result.stderr


@pytest.mark.parametrize("words", [("approve", "ABCDEFGH"), ("deny", "ABCDEFGH"), ("revoke", "telegram", "1")])
def test_what_is_not_there_is_an_error_with_the_next_step(words: tuple[str, ...]):
    result = run(*words)

    assert result.exit_code == 1
    assert "pairing list" in result.stderr
    assert not (home() / "pairing.json").exists()


def test_a_damaged_file_is_refused_named_and_kept(store: PairingStore):
    home().mkdir()
    store.path.write_text('{"owners": 5}', encoding="utf-8")

    for words in (["list"], ["approve", "X"], ["deny", "X"], ["revoke", "a", "b"]):
        result = run(*words)
        assert result.exit_code == 1
        assert str(store.path) in result.stderr
        assert "owners: " in result.stderr
    assert store.path.read_text(encoding="utf-8") == '{"owners": 5}'


def test_an_id_steers_no_terminal(store: PairingStore):
    code_for(store, "irc", "\x1b[2Jx\ny")

    assert run("list").stdout.startswith("irc\tx y\twaiting\t")
