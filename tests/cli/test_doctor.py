"""`nanobot doctor`: each thing that is wrong is found under its id, and what can be repaired safely is."""

import base64
import json
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nanobot.cli.doctor.checks import CheckContext, DoctorCheck, note, run_checks
from nanobot.cli.doctor.command import HEALTH, SECURITY
from nanobot.cli.main import app
from nanobot.config.paths import use_config
from nanobot.config.schema import Config
from nanobot.runtime.sandbox import command_sandbox
from nanobot.security.grants import Grants
from nanobot.security.sandbox.landlock import can_scope
from nanobot.testing.model_server import Calls, Fail, FakeModels, Say
from nanobot.utils.clock import FrozenClock
from tests.support.home import using
from tests.support.plugin_package import HOOK, TOOL, install

RUNNER = CliRunner()
IS_ROOT = os.name == "posix" and os.geteuid() == 0
POSIX = pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX")


@pytest.fixture
def data(tmp_path, tmp_path_factory, monkeypatch):
    """A home with nothing in it but this, on a machine where bubblewrap works."""
    programs = tmp_path_factory.mktemp("programs")
    (programs / "bwrap").write_text("#!/bin/sh\nexit 0\n")
    (programs / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    yield tmp_path / ".nanobot"
    use_config(None)


def configured(data, **config):
    data.mkdir(mode=0o700, exist_ok=True)
    file = data / "config.json"
    file.write_text(json.dumps(config))
    file.chmod(0o600)


def examination(*words):
    """What it says, by the id of the check; and its exit code."""
    ran = RUNNER.invoke(app, ["doctor", "--json", *words])
    told = json.loads(ran.stdout)
    assert told["ok"] is (ran.exit_code == 0)
    return {check["id"]: check for check in told["checks"]}, told


def texts(check):
    return " ".join(finding["text"] for finding in check["findings"] if finding["severity"] != "note")


def at(path: str) -> dict[str, Any]:
    """A config with this workspace."""
    return {"agents": {"defaults": {"workspace": path}}}


def mcp(**server: Any) -> dict[str, Any]:
    return {"tools": {"mcpServers": {"x": {"command": "python3", **server}}}}


def nothing(data: Path) -> None:
    """Have nothing but the config."""


def open_key(data: Path) -> None:
    if os.name != "posix":
        pytest.skip("modes of files are POSIX")
    (data / "key").write_text("k")
    (data / "key").chmod(0o644)


def no_owner(data: Path) -> None:
    (data / "pairing.json").write_text('{"approved": {"telegram": ["7"]}}')


def workspace_of_another(data: Path) -> None:
    if not IS_ROOT:
        pytest.skip("only root can have the workspace of another")
    (data / "workspace").mkdir()
    os.chown(data / "workspace", 1000, 1000)


LAST_WORDS = "no such account\\n" + "npm error 404\\nnpm notice New minor version of npm available!\\n" * 3
ON = {"enabled": True, "token": "t"}
FOUND: list[tuple[str, str, dict[str, Any], Callable[[Path], object]]] = [
    ("config", "channels.mattermost is enabled", {"channels": {"mattermost": {"enabled": True}}}, nothing),
    ("config", "apiKey needs the file nowhere", {"providers": {"openai": {"apiKey": "file:nowhere"}}}, nothing),
    ("files.folders", "workspace cannot be created", at("~/.nanobot/config.json/workspace"), nothing),
    ("files.folders", "broken symlink", {}, lambda data: (data / "workspace").symlink_to(data / "gone")),
    ("files.folders", "is not a folder", {}, lambda data: (data / "state").touch()),
    ("files.owner", "commands cannot write to it", {}, workspace_of_another),
    ("plugins", "plugins.commands.mine: there is no program no-such-program",
     {"plugins": {"commands": {"mine": {"command": ["no-such-program"], "on": ["message"]}}}}, nothing),
    ("programs", "no-such-program of the MCP server x is not found", mcp(command="no-such-program"), nothing),
    ("stores.pairing", "1 person is paired, but there is no owner", {"channels": {"telegram": ON}}, no_owner),
    ("channels.telegram", "", {"channels": {"telegram": {"enabled": True, "token": "", "allowFrom": ["1"]}}}, nothing),
    ("mcp.x", "no such account", mcp(command=sys.executable, args=["-c", f"exit('{LAST_WORDS}')"]), nothing),
    ("--security config", "tools.restrictToWorkspace", {"tools": {"restrictToWorkSpace": True}}, nothing),
    ("--security paths.wide", "write to your whole home folder", {"tools": {"allowedPaths": ["~"]}}, nothing),
    ("--security paths.wide", "write to the whole disk", {"tools": {"allowedPaths": ["/"]}}, nothing),
    ("--security paths.wide", "write to nanobot's own data folder", {"tools": {"allowedPaths": ["~/.nanobot/state"]}},
     nothing),
    ("--security paths.wide", "workspace is {data}: nanobot's own data", at("~/.nanobot/"), nothing),
    ("--security paths.wide", "nanobot's own state", at("~/.nanobot/state/x"), nothing),
    ("--security paths.wide", "inside a folder of keys", at("~/.ssh"), nothing),
    ("--security paths.wide", "your whole home", at("~/.nanobot/link"),
     lambda data: (data / "link").symlink_to(data.parent)),
    ("--security code.foreign", "plugins.enabled contains *", {"plugins": {"enabled": ["*"]}}, nothing),
    ("--security code.foreign", "x.cwd is {data}/workspace,", mcp(cwd="~/.nanobot/workspace"), nothing),
    ("--security code.foreign", "x.command is {data}/workspace/", mcp(command="~/.nanobot/workspace/serve"), nothing),
    ("--security code.foreign", "x.args is {data}/workspace/", mcp(args=["-u", "~/.nanobot/workspace/a.py"]), nothing),
    ("--security network.doors", "gateway.host is 192.0.2.1: status, page and API cross the network unencrypted",
     {"gateway": {"host": "192.0.2.1"}}, nothing),
    ("--security network.doors", "api.host is 192.0.2.1: keys and", {"api": {"host": "192.0.2.1"}}, nothing),
    ("--security secrets.kept", "providers.openai.apiKey is stored in {data}/key",
     {"providers": {"openai": {"apiKey": "file:key"}}}, open_key),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said", "config", "place"), FOUND)
def test_what_is_wrong_is_told_by_the_id_of_its_check(data, words, said, config, place):
    configured(data, **config)
    place(data)

    *options, name = words.split()

    checks, told = examination(*options, *([name] if words != "--security config" else []))

    assert said.format(data=data) in texts(checks[name])
    assert checks[name]["verdict"] != "ok"
    assert not told["ok"]


@pytest.mark.parametrize("words", [(), ("--security",)], ids=["health", "security"])
def test_a_fresh_machine_has_no_finding(data, words):
    _, told = examination(*words)

    assert told["ok"]
    assert not data.exists()


@pytest.mark.parametrize("words", [("--security",), ("model",), ()], ids=str)
def test_a_config_that_cannot_be_used_is_told_and_what_does_not_need_it_is_examined(data, words):
    data.mkdir()
    (data / "config.json").write_text('{"agents": {')

    checks, told = examination(*words)

    assert not told["ok"]
    assert "config.json:1" in texts(checks["config"])
    assert words == ("--security",) or checks["model"]["findings"][0]["text"].startswith("skipped")
    assert words or "free" in checks["disk"]["findings"][0]["text"]


@pytest.mark.parametrize("allowed", [False, True], ids=["refused", "allowed"])
def test_models_without_a_price_under_a_limit_in_dollars_are_named_with_the_key_to_set(data, allowed):
    house = {"apiBase": "http://127.0.0.1:9/v1", "prices": {"house-2": {"input": 1, "output": 2}}}
    fallbacks = ["spare", {"model": "qwen3", "provider": "ollama"}]
    models = {"model": "house-1", "fallbackModels": fallbacks, "backgroundModel": "house-3"}
    configured(
        data,
        agents={"defaults": {"provider": "house", **models}},
        modelPresets={"spare": {"model": "house-2", "provider": "house"}},
        providers={"house": house},
        limits={"dailyUsd": 1, **({"unknownPrice": "allow"} if allowed else {})},
    )

    checks, told = examination("limits")

    found = [one for one in checks["limits"]["findings"] if one["severity"] != "note"]
    assert [one["severity"] for one in found] == ["warning" if allowed else "error"] * 2
    assert [one["text"].split()[7] for one in found] == ["house-1", "house-3"]
    assert all("providers.house.prices" in one["text"] for one in found)
    assert not told["ok"]


def test_an_owner_is_told_what_the_wall_of_this_machine_holds_and_what_not(data):
    report = command_sandbox(Config(), data, data / "workspace").report()

    checks, _ = examination("--security", "exec.walls")

    [told] = checks["exec.walls"]["findings"]
    assert all(sentence.removesuffix(".") in told["text"] for sentence in (*report.holds, *report.lacks))


@pytest.mark.parametrize(
    ("wish", "verdict"), [("bwrap", "error"), ("auto", "warning" if can_scope() else "ok"), ("none", "ok")]
)
def test_the_wall_is_told_as_this_machine_has_it(data, monkeypatch, wish, verdict):
    configured(data, tools={"exec": {"sandbox": wish}})
    monkeypatch.setenv("PATH", str(data))

    checks, _ = examination("sandbox")

    found = checks["sandbox"]["findings"][0]
    is_told = "bwrap is not installed" in found["text"] + found["advice"]
    assert (checks["sandbox"]["verdict"], is_told) == (verdict, wish != "none")
    assert sorted(path.name for path in data.iterdir()) == ["config.json"]


# what --fix repairs


def test_a_repair_that_fails_is_no_success(data):
    configured(data)
    (data / "workspace").mkdir()
    (data / "workspace" / "memory").write_text("a file where a folder should be")

    ran = RUNNER.invoke(app, ["doctor", "files.templates", "--fix"])

    assert ran.exit_code == 1
    assert "failed   files.templates: could not be repaired: " in ran.stdout


@POSIX
def test_files_that_others_can_read_and_a_workspace_they_can_write_are_found_and_closed(data):
    configured(data)
    (data / "config.json").chmod(0o644)
    (data / "state").mkdir(mode=0o755)
    (data / "state" / "x.json").write_text("{}")
    (data / "workspace").mkdir()
    (data / "workspace").chmod(0o777)

    before, _ = examination("files")
    after, told = examination("files", "--fix")
    _, closed = examination("--security", "--fix", "paths")

    assert "config.json can be read by others (mode 0644)" in texts(before["files.private"])
    assert after["files.private"]["verdict"] == "ok"
    assert told["ok"] and closed["ok"]
    assert {one["id"] for one in told["repaired"]} >= {"files.private"}
    assert not (data / "state" / "x.json").stat().st_mode & 0o077
    assert stat.S_IMODE((data / "workspace").stat().st_mode) == 0o775


def test_missing_folders_and_templates_are_made_and_leftovers_of_killed_writes_deleted_on_request(data):
    configured(data)
    left, young = data / ".config.json.0a1b2c3d.tmp", data / ".config.json.4e5f6a7b.tmp"
    for path in (left, young):
        path.write_text("half")
    os.utime(left, (time.time() - 9000,) * 2)
    before, _ = examination("files")
    examination("files", "--fix")

    (data / "workspace" / "SOUL.md").unlink(missing_ok=True)
    after, told = examination("files", "--fix")

    assert "created with the workspace" in before["files.templates"]["findings"][0]["text"]
    assert (before["files.leftovers"]["verdict"], told["ok"]) == ("warning", True)
    assert (after["files.templates"]["findings"], (data / "workspace" / "SOUL.md").exists()) == ([], True)
    assert (left.exists(), young.exists()) == (False, True)


def test_a_damaged_store_is_found_and_told_once_and_left_as_it_is(data, caplog):
    configured(data)
    for name in ("state", "workspace", "workspace/cron", "workspace/sessions"):
        (data / name).mkdir(mode=0o700)
    with closing(sqlite3.connect(data / "state" / "nanobot.db")) as db, db:
        db.execute("CREATE TABLE x (y)")
    sound, _ = examination("stores")
    (data / "state" / "nanobot.db").write_bytes(b"no database at all" * 100)
    (data / "workspace" / "cron" / "jobs.json").write_text("{")
    (data / "workspace" / "sessions" / "cli_x.jsonl").write_text('{"role": "user", "content": "hi"}\n{"role\n')
    (data / "pairing.json").write_text("[")
    (data / "state" / "provenance.json").write_text("[")

    checks, told = examination("stores")

    assert {check["verdict"] for check in sound.values()} == {"ok"}
    wrong = {name for name, check in checks.items() if check["verdict"] == "error"}
    assert wrong == {"stores.database", "stores.jobs", "stores.pairing", "stores.provenance"}
    assert "1 line cannot be read" in checks["stores.sessions"]["findings"][0]["text"]
    assert "untrusted" in texts(checks["stores.provenance"])
    assert (told["ok"], caplog.records) == (False, [])
    assert not list(data.rglob("*.corrupt"))


def test_the_program_of_an_mcp_server_is_looked_for_where_the_server_is_started(data, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "lamp").write_text("#!/bin/sh\n")
    (programs / "lamp").chmod(0o755)
    servers = {
        "own-path": {"command": "lamp", "env": {"PATH": str(programs)}},
        "own-folder": {"command": "./lamp", "cwd": str(programs)},
        "path-of-commands": {"command": "lamp"},
    }
    configured(data, tools={"exec": {"pathAppend": str(programs)}, "mcpServers": servers})

    checks, _ = examination("programs")

    (finding,) = checks["programs"]["findings"]
    assert "path-of-commands" in finding["text"]


# the model


@pytest.fixture
def model(data):
    with FakeModels() as server:
        configured(data, **using("custom", "m", apiKey="canary-key-0001", apiBase=server.v1))
        yield server


def test_the_model_is_asked_for_a_word_a_tool_call_and_a_picture(model):
    model.script(Say("one two three"), Calls(("add", {"a": 17, "b": 25})), Say("Red."))

    checks, told = examination()

    assert told["ok"], told
    assert checks["model"]["findings"][0]["text"].startswith("m (custom): answers, streams, calls tools")
    assert len(model.chats) == 3


@pytest.mark.parametrize(
    "spelling",
    [
        str,
        lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
        lambda key: key.encode().hex(),
        lambda key: key[::-1],
    ],
    ids=["plain", "base64", "hex", "reversed"],
)
def test_a_model_that_refuses_is_an_error_that_names_the_key_and_shows_it_in_no_spelling(model, spelling):
    said = spelling("canary-key-0001")
    model.script(*[Fail(401, message=f"wrong key <{said}> of yours")] * 2)

    shown, told = (RUNNER.invoke(app, ["doctor", *options, "model"]).stdout for options in ([], ["--json"]))

    assert "of yours" in " ".join(shown.split()) and "of yours" in told
    assert "providers.custom.apiKey" in told
    assert said[3:-3] not in "".join(shown.split()) + told


def test_a_model_that_only_talks_is_an_error(data, model):
    model.default = Say("N")
    settings = json.loads((data / "config.json").read_text())
    settings["agents"]["defaults"]["contextWindowTokens"] = 8000
    configured(data, **settings)

    checks, _ = examination("model")

    found = checks["model"]["findings"]
    assert found[0]["text"] == "m (custom): answers; a window of 8,000 tokens"
    assert [one["severity"] for one in found] == ["note", "error", "warning", "note", "note"]
    assert "cannot read files or act" in found[1]["text"]


# plugins


def plugged(data, **plugins):
    """A home, and on the path a package that cannot be imported, one with a hook, and one that is off."""
    site = data.parent / "site"
    site.mkdir(exist_ok=True)
    install(site, "broken-pack", "raise RuntimeError('boom')", {"tools": {"t": "T"}, "channels": {"b": "B"}})
    install(site, "hanging-pack", HOOK, {"hooks": {"hangs": "Hangs"}}, version="2.0")
    install(site, "quiet-pack", TOOL, {"tools": {"weather": "Weather"}, "channels": {"telegram": "T"}})
    configured(data, plugins={"enabled": ["broken-pack", "hanging-pack"], **plugins}, channels={"b": {"enabled": True}})
    return site


def test_plugins_that_are_broken_or_off_are_named_with_what_to_do_here_and_in_status(data, monkeypatch):
    monkeypatch.syspath_prepend(plugged(data))

    checks, _ = examination("plugins", "channels")
    status = json.loads(RUNNER.invoke(app, ["status", "--json"]).stdout)["plugins"]
    lines = RUNNER.invoke(app, ["status"]).stdout

    findings = checks["plugins"]["findings"]
    told = {(one["severity"], one["text"]) for one in findings}
    assert ("error", "broken-pack: its tool t was skipped: RuntimeError: boom.") in told
    assert any(kind == "warning" and text.startswith("quiet-pack: its channel telegram") for kind, text in told)
    assert any(kind == "note" and text.startswith("quiet-pack is installed but not enabled") for kind, text in told)
    assert 'add "quiet-pack" to plugins.enabled' in str(findings)
    assert "broken-pack, which cannot be loaded: RuntimeError: boom" in texts(checks["channels.b"])
    assert "quiet_pack" not in sys.modules
    assert [one["name"] for one in status] == ["broken-pack", "hanging-pack"]
    assert status[0]["troubles"] == ["its tool t was skipped: RuntimeError: boom"]
    assert "broken-pack 1.0" in lines


def test_what_is_disabled_is_not_even_loaded(data, monkeypatch):
    monkeypatch.syspath_prepend(plugged(data, disabled=["broken-pack"]))

    checks, _ = examination("plugins", "channels")

    assert "broken-pack" not in texts(checks["plugins"])
    assert "channels.b comes from the package broken-pack, which plugins.disabled lists" in texts(checks["channels.b"])


def test_a_check_that_hangs_or_breaks_is_a_finding_and_stops_no_other(tmp_path):
    patient = CheckContext(Config(), tmp_path / "config.json", tmp_path, tmp_path)
    broken = {"a": 1}

    def hangs(patient):
        time.sleep(2)
        return ()

    checks = [
        DoctorCheck("hangs", "", hangs, limit_s=0.1),
        DoctorCheck("breaks", "", lambda patient: [note(str(broken["b"]))]),
        DoctorCheck("sound", "", lambda patient: [note("fine")]),
    ]

    found = {one.check.id: one for one in run_checks(checks, patient)}

    assert found["hangs"].findings[0].text == "no answer within 0.1 s"
    assert found["breaks"].findings[0].text == "This check crashed: KeyError: 'b'"
    assert found["sound"].verdict == "ok"


# --security

OPEN = {
    "access.everybody": {"channels": {"telegram": {"enabled": True, "token": "t", "allowFrom": ["*"]}}},
    "approval.off": {"tools": {"approval": "off"}},
    "exec.walls": {"tools": {"exec": {"sandbox": "none"}}},
    "paths.wide": {"tools": {"allowedPaths": ["~"]}},
    "network.whitelist": {"tools": {"ssrfWhitelist": ["169.254.0.0/16"]}},
    "network.doors": {"api": {"host": "0.0.0.0"}},
    "network.plain": {"providers": {"custom": {"apiKey": "k0123456789", "apiBase": "http://models.example.com/v1"}}},
    "code.foreign": {"tools": {"mcpServers": {"x": {"command": "npx", "args": ["-y", "server-everything@latest"]}}}},
}
SERVERS = {
    "x": {"command": "npx", "args": ["-y", "@org/server@1.2.3"]},
    "y": {"command": "uvx", "args": ["mcp-server-time==1.0"]},
    "z": {"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": "Bearer x"}},
    "data": {"command": "files-server", "args": ["~/.nanobot/workspace"], "cwd": "~/project"},
}
NARROW = {
    "tools": {
        "exec": {"allowedEnvKeys": ["LANG"]},
        "allowedPaths": ["~/projects"],
        "ssrfWhitelist": ["192.168.1.20/32", "fd00::1/128"],
        "mcpServers": SERVERS,
    },
    "channels": {"websocket": {"enabled": True, "token": "t", "allowFrom": ["7"]}},
    "providers": {"custom": {"apiKey": "cmd:false", "apiBase": "http://localhost:1/v1"}},
}


@pytest.mark.parametrize(("name", "config"), OPEN.items(), ids=OPEN)
def test_what_stands_open_is_told_by_its_id(data, name, config):
    configured(data, **config)

    checks, told = examination("--security")

    assert {name for name, check in checks.items() if check["verdict"] != "ok"} == {name}
    assert not told["ok"]
    assert all(finding["advice"] for finding in checks[name]["findings"])


def test_what_is_narrow_is_no_finding_and_no_command_is_run_for_it(data):
    configured(data, **NARROW)

    _, told = examination("--security")

    assert told["ok"], told


def test_a_key_in_plain_text_is_advice_and_what_stands_for_none_is_not_one(data):
    none = {"apiKey": "not-needed", "apiBase": "http://models.example.com/v1"}
    configured(data, providers={"openai": {"apiKey": "sk-plain-0123456789"}, "custom": none})

    checks, told = examination("--security")

    assert "providers.openai.apiKey" in checks["secrets.plain"]["findings"][0]["text"]
    assert "custom" not in json.dumps(checks["secrets.plain"]["findings"] + checks["network.plain"]["findings"])
    assert told["ok"]
    assert "sk-plain" not in json.dumps(told)


def test_what_was_allowed_long_ago_is_brought_to_mind(data):
    configured(data)
    (data / "state").mkdir(mode=0o700)
    clock = FrozenClock(datetime.now(UTC) - timedelta(days=20))
    Grants(data / "state" / "nanobot.db", clock).add(["folder:/srv/old"], outside=False)
    clock.advance(timedelta(days=15).total_seconds())
    Grants(data / "state" / "nanobot.db", clock).add(["folder:/srv/new"], outside=False)

    checks, _ = examination("--security", "approval")

    assert "folder:/srv/old" in texts(checks["approval.always"])
    assert "folder:/srv/new" not in texts(checks["approval.always"])


# how it is told


def test_a_person_reads_lines_with_what_to_do_right_below(data):
    configured(data, tools={"approval": "off", "mcpServers": {name: {"command": f"no-such-{name}"} for name in "ab"}})

    security, programs = (RUNNER.invoke(app, ["doctor", word]) for word in ("--security", "programs"))

    assert (security.exit_code, programs.exit_code) == (1, 1)
    assert "error    approval.off" in security.stdout
    assert '-> Set tools.approval to "ask".' in security.stdout
    assert f"{len(SECURITY)} checks: 1 error." in security.stdout
    told = " ".join(programs.stdout.split())
    assert (
        told.index("mcpServers.a.command") < told.index("of the MCP server b is") < told.index("mcpServers.b.command")
    )
    assert "1 check: 2 errors." in programs.stdout


def test_one_thing_is_examined_by_its_id(data):
    assert [*examination("stores", "disk")[0]] == [
        "disk", "stores.database", "stores.sessions", "stores.jobs", "stores.pairing",
        "stores.provenance",
    ]  # fmt: skip

    ran = RUNNER.invoke(app, ["doctor", "store"])

    assert ran.exit_code == 1
    assert "There is no check 'store'. Did you mean 'stores'" in ran.stderr


def test_ids_are_unique_and_documented():
    ids = [check.id for check in (*HEALTH, *SECURITY)]
    page = (Path(__file__).parents[2] / "docs" / "guides" / "doctor.md").read_text(encoding="utf-8")

    assert len(set(ids)) == len(ids)
    assert [name for name in ids if f"`{name}`" not in page] == []
