"""`nanobot doctor`: each thing that is wrong is found under its id, and what can be repaired safely is."""

import base64
import json
import os
import sqlite3
import stat
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanobot.agent.tools.mcp.server import McpTimeouts
from nanobot.cli.commands.doctor import HEALTH, SECURITY
from nanobot.cli.doctor.checks import CheckContext, DoctorCheck, note, run_checks
from nanobot.cli.doctor.connections import connection_checks
from nanobot.cli.main import app
from nanobot.config.paths import DataPaths, use_config
from nanobot.config.schema import Config
from nanobot.pairing.store import PairingStore
from nanobot.runtime.sandbox import command_sandbox
from nanobot.security.grants import Grants
from nanobot.security.sandbox.landlock import can_scope
from nanobot.testing.model_server import Calls, Fail, FakeModels, Say
from nanobot.utils.clock import FrozenClock
from tests.support.plugin_package import HOOK, TOOL, install

RUNNER = CliRunner()
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


def with_model(data, server, key):
    configured(
        data,
        agents={"defaults": {"provider": "custom", "model": "m"}},
        providers={"custom": {"apiKey": key, "apiBase": server.v1}},
    )


def examination(*words):
    """What it says, by the id of the check; and its exit code."""
    ran = RUNNER.invoke(app, ["doctor", "--json", *words])
    told = json.loads(ran.stdout)
    assert told["ok"] is (ran.exit_code == 0)
    return {check["id"]: check for check in told["checks"]}, told


def texts(check):
    return " ".join(finding["text"] for finding in check["findings"] if finding["severity"] != "note")


@pytest.mark.parametrize("words", [(), ("--security",)], ids=["health", "security"])
def test_a_fresh_machine_has_no_finding(data, words):
    _, told = examination(*words)

    assert told["ok"]
    assert not data.exists()


def test_a_config_that_cannot_be_used_is_told_and_the_rest_is_examined(data):
    data.mkdir()
    (data / "config.json").write_text('{"agents": {')

    checks, _ = examination()

    assert "config.json:1" in texts(checks["config"])
    assert checks["model"]["findings"][0]["text"].startswith("skipped")
    assert "free" in checks["disk"]["findings"][0]["text"]


WRONG: list[tuple[str, str, dict[str, object]]] = [
    ("config", "channels.mattermost is enabled", {"channels": {"mattermost": {"enabled": True}}}),
    ("config", "providers.openai.apiKey needs the file nowhere", {"providers": {"openai": {"apiKey": "file:nowhere"}}}),
    (
        "files.folders",
        "workspace cannot be created",
        {"agents": {"defaults": {"workspace": "~/.nanobot/config.json/workspace"}}},
    ),
    (
        "plugins",
        "plugins.commands.mine: there is no program no-such-program",
        {"plugins": {"commands": {"mine": {"command": ["no-such-program"], "on": ["message"]}}}},
    ),
    (
        "programs",
        "nanobot-has-no-such-program of the MCP server x is not found",
        {"tools": {"mcpServers": {"x": {"command": "nanobot-has-no-such-program"}}}},
    ),
    ("--security config", "tools.restrictToWorkspace", {"tools": {"restrictToWorkSpace": True}}),
    (
        "--security paths.wide",
        "contains ~: tools can write to your whole home folder",
        {"tools": {"allowedPaths": ["~"]}},
    ),
    ("--security paths.wide", "contains /: tools can write to the whole disk", {"tools": {"allowedPaths": ["/"]}}),
    (
        "--security paths.wide",
        "can write to nanobot's own data folder",
        {"tools": {"allowedPaths": ["~/.nanobot/state"]}},
    ),
    ("--security code.foreign", "plugins.enabled contains *", {"plugins": {"enabled": ["*"]}}),
    (
        "--security network.doors",
        "gateway.host is 192.0.2.1: status, page and API cross the network unencrypted",
        {"gateway": {"host": "192.0.2.1"}},
    ),
    ("--security network.doors", "api.host is 192.0.2.1: keys and", {"api": {"host": "192.0.2.1"}}),
]


@pytest.mark.parametrize(("words", "said", "config"), WRONG, ids=[said for _, said, _ in WRONG])
def test_what_is_wrong_in_the_config_is_told_by_the_id_of_its_check(data, words, said, config):
    configured(data, **config)
    options = [word for word in words.split() if word.startswith("-")] or ["--offline"]

    checks, told = examination(*options)

    assert said in texts(checks[words.split()[-1]])
    assert not told["ok"]


@pytest.mark.parametrize("allowed", [False, True], ids=["refused", "allowed"])
def test_models_without_a_price_under_a_limit_in_dollars_are_named_with_the_key_to_set(data, allowed):
    limits = {"dailyUsd": 1, **({"unknownPrice": "allow"} if allowed else {})}
    house = {"apiBase": "http://127.0.0.1:9/v1", "prices": {"house-2": {"input": 1, "output": 2}}}
    configured(
        data,
        agents={
            "defaults": {
                "provider": "house",
                "model": "house-1",
                "fallbackModels": ["spare", {"model": "qwen3", "provider": "ollama"}],
                "backgroundModel": "house-3",
            }
        },
        modelPresets={"spare": {"model": "house-2", "provider": "house"}},
        providers={"house": house},
        limits=limits,
    )

    checks, told = examination("limits")

    found = [one for one in checks["limits"]["findings"] if one["severity"] != "note"]
    assert [one["severity"] for one in found] == ["warning" if allowed else "error"] * 2
    assert [one["text"].split()[7] for one in found] == ["house-1", "house-3"]
    assert all("providers.house.prices" in one["text"] for one in found)
    assert not told["ok"]


@pytest.mark.parametrize("words", [("--security",), ("model",)])
def test_what_cannot_be_examined_for_a_broken_config_does_not_look_well(data, words):
    data.mkdir()
    (data / "config.json").write_text('{"agents": {')

    checks, told = examination(*words)

    assert not told["ok"]
    assert "config.json:1" in texts(checks["config"])


def test_a_workspace_that_leads_nowhere_is_found(data):
    data.mkdir(mode=0o700)
    (data / "workspace").symlink_to(data / "gone")

    checks, _ = examination("files.folders")

    assert "broken symlink" in texts(checks["files.folders"])


def test_an_owner_is_told_what_the_wall_of_this_machine_holds_and_what_not(data):
    report = command_sandbox(Config(), data, data / "workspace").report()

    checks, _ = examination("--security", "exec.walls")

    [told] = checks["exec.walls"]["findings"]
    assert all(sentence.removesuffix(".") in told["text"] for sentence in (*report.holds, *report.lacks))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("", "nanobot's own data folder"),
        ("state/x", "nanobot's own state"),
        ("../.ssh", "inside a folder of keys"),
        ("../link", "your whole home"),
    ],
)
def test_a_workspace_in_a_place_of_other_things_is_told(data, place: str, said: str):
    (data.parent / "link").symlink_to(data.parent)
    configured(data, agents={"defaults": {"workspace": str(data / place)}})

    checks, _ = examination("--security", "paths.wide")

    assert said in texts(checks["paths.wide"])


def test_a_file_in_the_place_of_the_state_folder_is_found(data):
    configured(data)
    (data / "state").touch()

    checks, _ = examination("files.folders")

    assert f"The state folder {data / 'state'} is not a folder" in texts(checks["files.folders"])


def test_a_repair_that_fails_is_no_success(data):
    configured(data)
    (data / "workspace").mkdir()
    (data / "workspace" / "memory").write_text("a file where a folder should be")

    ran = RUNNER.invoke(app, ["doctor", "files.templates", "--fix"])

    assert ran.exit_code == 1
    assert "failed   files.templates: could not be repaired: " in ran.stdout


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can have the workspace of another")
def test_root_with_the_workspace_of_another_is_told_what_commands_cannot_do(data):
    configured(data)
    (data / "workspace").mkdir()
    os.chown(data / "workspace", 1000, 1000)

    checks, _ = examination("files.owner")

    assert "commands cannot write to it" in texts(checks["files.owner"])


@POSIX
def test_a_workspace_that_everybody_can_write_is_closed(data):
    configured(data)
    (data / "workspace").mkdir()
    (data / "workspace").chmod(0o777)

    _, told = examination("--security", "--fix", "paths")

    assert told["ok"]
    assert stat.S_IMODE((data / "workspace").stat().st_mode) == 0o775


@POSIX
def test_files_that_others_can_read_are_found_and_closed(data):
    configured(data)
    (data / "config.json").chmod(0o644)
    (data / "state").mkdir(mode=0o755)
    (data / "state" / "x.json").write_text("{}")

    before, _ = examination("--offline")
    after, told = examination("--offline", "--fix")

    assert "config.json can be read by others (mode 0644)" in texts(before["files.private"])
    assert after["files.private"]["verdict"] == "ok"
    assert told["ok"]
    assert {one["id"] for one in told["repaired"]} >= {"files.private"}
    assert not (data / "state" / "x.json").stat().st_mode & 0o077


def test_missing_folders_and_templates_are_made_on_request(data):
    configured(data)
    fresh, _ = examination("files.templates")
    assert "created with the workspace" in fresh["files.templates"]["findings"][0]["text"]
    examination("--offline", "--fix")

    (data / "workspace" / "SOUL.md").unlink(missing_ok=True)
    checks, told = examination("--offline", "--fix")

    assert (data / "workspace" / "SOUL.md").exists()
    assert told["ok"]
    assert checks["files.templates"]["findings"] == []


def test_a_damaged_store_is_found(data):
    configured(data)
    for name in ("state", "workspace", "workspace/cron", "workspace/sessions"):
        (data / name).mkdir(mode=0o700)
    (data / "state" / "nanobot.db").write_bytes(b"no database at all" * 100)
    (data / "workspace" / "cron" / "jobs.json").write_text("{")
    (data / "workspace" / "sessions" / "cli_x.jsonl").write_text('{"role": "user", "content": "hi"}\n{"role\n')
    (data / "pairing.json").write_text("[")
    (data / "state" / "provenance.json").write_text("[")

    checks, told = examination("--offline")

    wrong = {name for name, check in checks.items() if check["verdict"] == "error" and name.startswith("stores.")}
    assert wrong == {"stores.database", "stores.jobs", "stores.pairing", "stores.provenance"}
    assert "1 line cannot be read" in checks["stores.sessions"]["findings"][0]["text"]
    assert not told["ok"]
    assert not list(data.rglob("*.corrupt"))


def test_a_sound_journal_is_left_as_it_is(data):
    configured(data)
    (data / "state").mkdir(mode=0o700)
    with closing(sqlite3.connect(data / "state" / "nanobot.db")) as db, db:
        db.execute("CREATE TABLE x (y)")
    db.close()

    checks, _ = examination("--offline")

    assert checks["stores.database"]["verdict"] == "ok"


def test_leftovers_of_killed_writes_are_deleted_on_request(data):
    configured(data)
    left, young = data / ".config.json.0a1b2c3d.tmp", data / ".config.json.4e5f6a7b.tmp"
    for path in (left, young):
        path.write_text("half")
    os.utime(left, (time.time() - 9000,) * 2)

    before, _ = examination("--offline")
    after, _ = examination("--offline", "--fix")

    assert (before["files.leftovers"]["verdict"], after["files.leftovers"]["verdict"]) == ("warning", "ok")
    assert (left.exists(), young.exists()) == (False, True)


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

    checks, _ = examination("--offline", "programs")

    (finding,) = checks["programs"]["findings"]
    assert "path-of-commands" in finding["text"]


def test_the_model_is_asked_for_a_word_a_tool_call_and_a_picture(data):
    with FakeModels() as server:
        with_model(data, server, "k")
        server.script(Say("one two three"), Calls(("add", {"a": 17, "b": 25})), Say("Red."))

        checks, told = examination()

    assert told["ok"], told
    assert checks["model"]["findings"][0]["text"].startswith("m (custom): answers, streams, calls tools")
    assert len(server.chats) == 3


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
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_key_that_the_server_repeats_is_shown_in_no_spelling(data, spelling, options):
    key = "canary-key-0001"
    with FakeModels() as server:
        with_model(data, server, key)
        server.script(Fail(401, message=f"wrong key <{spelling(key)}> of yours"))

        shown = RUNNER.invoke(app, ["doctor", *options, "model"]).stdout

    assert "of yours" in " ".join(shown.split())
    assert spelling(key)[3:-3] not in "".join(shown.split())


def test_a_model_that_refuses_is_an_error_that_names_the_key(data):
    with FakeModels() as server:
        with_model(data, server, "canary-key-0001")
        server.script(Fail(401, message="wrong key canary-key-0001"))

        checks, told = examination()

    assert checks["model"]["verdict"] == "error"
    assert "providers.custom.apiKey" in texts(checks["model"])
    assert "canary-key-0001" not in json.dumps(told)


def test_a_model_that_only_talks_is_an_error(data):
    with FakeModels(default=Say("N")) as server:
        with_model(data, server, "k")
        settings = json.loads((data / "config.json").read_text())
        settings["agents"]["defaults"]["contextWindowTokens"] = 8000
        configured(data, **settings)

        checks, _ = examination("model")

    found = checks["model"]["findings"]
    assert found[0]["text"] == "m (custom): answers; a window of 8,000 tokens"
    assert [one["severity"] for one in found] == ["note", "error", "warning", "note", "note"]
    assert "cannot read files or act" in found[1]["text"]


def test_a_channel_that_is_not_let_in_is_an_error(data):
    configured(data, channels={"telegram": {"enabled": True, "token": "", "allowFrom": ["1"]}})

    checks, _ = examination()

    assert checks["channels.telegram"]["verdict"] == "error"
    assert "channels.telegram" not in examination("--offline")[0]


def plugged(data, **plugins):
    """A home, and on the path a package that cannot be imported, one with a hook, and one that is off."""
    site = data.parent / "site"
    site.mkdir(exist_ok=True)
    install(site, "broken-pack", "raise RuntimeError('boom')", {"tools": {"t": "T"}, "channels": {"b": "B"}})
    install(site, "hanging-pack", HOOK, {"hooks": {"hangs": "Hangs"}}, version="2.0")
    install(site, "quiet-pack", TOOL, {"tools": {"weather": "Weather"}, "channels": {"telegram": "T"}})
    configured(data, plugins={"enabled": ["broken-pack", "hanging-pack"], **plugins}, channels={"b": {"enabled": True}})
    return site


def test_plugins_that_are_broken_or_off_are_named_with_what_to_do(data, monkeypatch):
    monkeypatch.syspath_prepend(plugged(data))

    checks, _ = examination("plugins", "channels")

    findings = checks["plugins"]["findings"]
    told = {(one["severity"], one["text"]) for one in findings}
    assert ("error", "broken-pack: its tool t was skipped: RuntimeError: boom.") in told
    assert any(kind == "warning" and text.startswith("quiet-pack: its channel telegram") for kind, text in told)
    assert any(kind == "note" and text.startswith("quiet-pack is installed but not enabled") for kind, text in told)
    assert 'add "quiet-pack" to plugins.enabled' in str(findings)
    assert "broken-pack, which cannot be loaded: RuntimeError: boom" in texts(checks["channels.b"])
    assert "quiet_pack" not in sys.modules


def test_what_is_disabled_is_not_even_loaded(data, monkeypatch):
    monkeypatch.syspath_prepend(plugged(data, disabled=["broken-pack"]))

    checks, _ = examination("plugins", "channels")

    assert "broken-pack" not in texts(checks["plugins"])
    assert "channels.b comes from the package broken-pack, which plugins.disabled lists" in texts(checks["channels.b"])


def test_status_names_plugins_and_what_is_wrong_with_them(data, monkeypatch):
    monkeypatch.syspath_prepend(plugged(data))

    told = json.loads(RUNNER.invoke(app, ["status", "--json"]).stdout)["plugins"]
    lines = RUNNER.invoke(app, ["status"]).stdout

    assert [one["name"] for one in told] == ["broken-pack", "hanging-pack"]
    assert told[0]["troubles"] == ["its tool t was skipped: RuntimeError: boom"]
    assert "broken-pack 1.0" in lines


def test_a_check_that_hangs_or_breaks_is_a_finding_and_stops_no_other(tmp_path):
    patient = CheckContext(Config(), tmp_path / "config.json", tmp_path, tmp_path)
    broken = {"a": 1}

    def hangs(patient):
        time.sleep(5)
        return ()

    checks = [
        DoctorCheck("hangs", "", hangs, limit_s=0.1),
        DoctorCheck("breaks", "", lambda patient: [note(str(broken["b"]))]),
        DoctorCheck("sound", "", lambda patient: [note("fine")]),
    ]

    began = time.monotonic()
    found = {one.check.id: one for one in run_checks(checks, patient)}

    assert time.monotonic() - began < 4
    assert found["hangs"].findings[0].text == "no answer within 0.1 s"
    assert found["breaks"].findings[0].text == "This check crashed: KeyError: 'b'"
    assert found["sound"].verdict == "ok"


def test_the_check_of_an_mcp_server_outlasts_its_first_download():
    (check,) = connection_checks(Config.model_validate({"tools": {"mcpServers": {"npx": {"command": "npx"}}}}))

    assert check.limit_s > McpTimeouts().to_connect_s


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
NARROW = {
    "tools": {
        "exec": {"allowedEnvKeys": ["LANG"]},
        "allowedPaths": ["~/projects"],
        "ssrfWhitelist": ["192.168.1.20/32", "fd00::1/128"],
        "mcpServers": {
            "x": {"command": "npx", "args": ["-y", "@org/server@1.2.3"]},
            "y": {"command": "uvx", "args": ["mcp-server-time==1.0"]},
            "z": {"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": "Bearer x"}},
        },
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


@pytest.mark.parametrize(
    "server",
    [{"cwd": "{workspace}"}, {"command": "{workspace}/serve"}, {"args": ["-u", "{workspace}/serve.py"]}],
    ids=lambda server: next(iter(server)),
)
def test_an_mcp_server_whose_code_the_agent_may_write_is_an_error(data, server):
    workspace = data / "workspace"
    placed = json.loads(json.dumps(server).replace("{workspace}", str(workspace)))
    configured(data, tools={"mcpServers": {"x": {"command": "python3", **placed}}})

    checks, _ = examination("--security")

    assert f"tools.mcpServers.x.{next(iter(server))} is {workspace}" in texts(checks["code.foreign"])


def test_an_mcp_server_that_is_given_the_workspace_as_data_is_no_finding(data):
    server = {"command": "files-server", "args": [str(data / "workspace")], "cwd": "~/project"}
    configured(data, tools={"mcpServers": {"x": server}})

    _, told = examination("--security")

    assert told["ok"], told


@POSIX
def test_a_file_that_keeps_a_key_must_be_private(data):
    configured(data, providers={"openai": {"apiKey": "file:key"}})
    (data / "key").write_text("k")
    (data / "key").chmod(0o644)

    checks, _ = examination("--security")

    assert f"providers.openai.apiKey is stored in {data / 'key'}" in texts(checks["secrets.kept"])


def test_a_key_in_plain_text_is_advice_and_no_finding(data):
    configured(data, providers={"openai": {"apiKey": "sk-plain-0123456789"}})

    checks, told = examination("--security")

    assert "providers.openai.apiKey" in checks["secrets.plain"]["findings"][0]["text"]
    assert told["ok"]
    assert "sk-plain" not in json.dumps(told)


def test_what_was_allowed_long_ago_is_brought_to_mind(data):
    configured(data)
    (data / "state").mkdir(mode=0o700)
    clock = FrozenClock(datetime.now(UTC) - timedelta(days=20))
    Grants(data / "state" / "nanobot.db", clock).add(["folder:/srv/old"], outside=False)
    clock.advance(timedelta(days=15).total_seconds())
    Grants(data / "state" / "nanobot.db", clock).add(["folder:/srv/new"], outside=False)

    checks, _ = examination("--security")

    assert "folder:/srv/old" in texts(checks["approval.always"])
    assert "folder:/srv/new" not in texts(checks["approval.always"])


@pytest.mark.parametrize(
    ("wish", "verdict"), [("bwrap", "error"), ("auto", "warning" if can_scope() else "ok"), ("none", "ok")]
)
def test_the_wall_is_told_as_this_machine_has_it(data, monkeypatch, wish, verdict):
    configured(data, tools={"exec": {"sandbox": wish}})
    monkeypatch.setenv("PATH", str(data))

    checks, _ = examination("sandbox")

    found = checks["sandbox"]["findings"][0]
    assert (checks["sandbox"]["verdict"], "bwrap is not installed" in found["text"] + found["advice"]) == (
        verdict,
        wish != "none",
    )
    assert sorted(path.name for path in data.iterdir()) == ["config.json"]


def test_a_channel_on_which_people_speak_and_nobody_is_owner_is_told(data):
    configured(data, channels={"telegram": {"enabled": True, "token": "t"}, "slack": {"enabled": False}})
    PairingStore(DataPaths(data)).admit("telegram", "7")

    checks, _ = examination("stores.pairing")

    assert "1 person is paired, but there is no owner" in texts(checks["stores.pairing"])


def test_an_mcp_server_that_does_not_start_is_told_with_its_last_words(data):
    noise = "npm error 404\\nnpm notice New minor version of npm available!\\n" * 3
    script = f"import sys; sys.exit('no such account\\n{noise}')"
    configured(data, tools={"mcpServers": {"x": {"command": sys.executable, "args": ["-c", script]}}})

    checks, _ = examination("mcp")

    assert "no such account" in texts(checks["mcp.x"])


def test_what_is_found_is_told_once_and_not_by_the_log_as_well(data, caplog):
    configured(data)
    (data / "state").mkdir(mode=0o700)
    (data / "state" / "provenance.json").write_text("{", encoding="utf-8")

    checks, _ = examination("stores.provenance")

    assert "untrusted" in texts(checks["stores.provenance"])
    assert caplog.records == []


def test_what_stands_for_no_key_is_none(data):
    configured(data, providers={"custom": {"apiKey": "not-needed", "apiBase": "http://models.example.com/v1"}})

    checks, _ = examination("--security")

    assert not checks["secrets.plain"]["findings"]
    assert not checks["network.plain"]["findings"]


def test_each_finding_has_its_advice_right_below(data):
    configured(data, tools={"mcpServers": {"a": {"command": "no-such-a"}, "b": {"command": "no-such-b"}}})

    ran = RUNNER.invoke(app, ["doctor", "programs"])

    told = " ".join(ran.stdout.split())
    assert (
        told.index("mcpServers.a.command") < told.index("of the MCP server b is") < told.index("mcpServers.b.command")
    )
    assert "1 check: 2 errors." in ran.stdout


def test_a_person_reads_lines_with_what_to_do(data):
    configured(data, tools={"approval": "off"})

    ran = RUNNER.invoke(app, ["doctor", "--security"])

    assert ran.exit_code == 1
    assert "error    approval.off" in ran.stdout
    assert '-> Set tools.approval to "ask".' in ran.stdout
    assert f"{len(SECURITY)} checks: 1 error." in ran.stdout


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
