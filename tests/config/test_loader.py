"""Reading config.json: what loads, what is refused and how it is said."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nanobot.config.keypath import dotted
from nanobot.config.loader import closed_channels, load_config, load_warnings
from nanobot.config.paths import use_config
from nanobot.config.schema import Config
from nanobot.config.section import Shape
from nanobot.errors import ConfigError

FIXTURES = Path(__file__).parent / "fixtures"
RELEASES = sorted(FIXTURES.glob("release-*.json"))


def refusal(path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.exit_code == 78
    return str(caught.value)


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_what_a_release_wrote_loads_without_a_word(release, capsys):
    config = load_config(release)

    assert load_warnings(config) == ()
    assert closed_channels(config) == []
    assert capsys.readouterr() == ("", "")
    assert config.get_provider_name() is None


def test_a_missing_file_means_the_defaults_unless_it_was_named(home, config_file, tmp_path):
    assert load_config() == Config()
    assert not (home / ".nanobot").exists()
    with pytest.raises(ConfigError, match=r"does not exist"):
        load_config(tmp_path / "no.json", must_exist=True)
    use_config(config_file(b"\xef\xbb\xbf" + b'{"api": {"port": 77}}'))  # a byte order mark is no harm
    assert load_config().api.port == 77


@pytest.mark.parametrize(
    ("content", "place", "words"),
    [
        ("", "1:1", "empty"),
        ("  \n ", "1:1", "empty"),
        ("[]", "1:1", "one object"),
        ("5", "1:1", "one object"),
        ('{\n  "api": {"port": 1,}\n}', "2:", "trailing comma"),
        ('{\n  "api": {\n    "port": 1,\n  }\n}', None, "trailing comma"),
        ('{\n  // the port\n  "api": {}\n}', "2:3", "no comments"),
        ('{\n  "api": {} # here\n}', "2:13", "no comments"),
        ('{\n  "api": {}\n  "tools": {}\n}', "3:3", "comma is missing"),
        ('{\n  "api" {}\n}', "2:9", "colon is missing"),
        ("{'api': {}}", "1:2", "double quotes"),
        ('{"api": {"port": 1}', None, "too early"),
        ('{"api": {"host": "x}}', "1:18", "no closing quote"),
        ('{}\n{"api": {}}', "2:1", "after the last"),
        ('{"api":\n {"port": 1,\n  "port": 2},\n "gateway": {"port": 3}}', "3:3", '"port" occurs twice'),
        ('[{"a": 1, "a": 2}, {]', "1:1", '"a" occurs twice'),
        ('{"limits": {"dailyUsd": NaN}}', "1:25", "NaN"),
        ('{"limits": {"dailyUsd": -Infinity}}', "1:25", "-Infinity"),
        ('{"limits": {"dailyUsd": 1e999}}', "1:25", "too large"),
        ('{"agents": {"defaults": {"maxTokens": ' + "9" * 5000 + "}}}", None, "too long"),
        ("[" * 100_000, None, "nested too deeply"),
        (b'{"api":\n {"host": "\xff"}}', "2:12", "UTF-8"),
        (b"\x00\x01\x02", "1:1", "expected a value"),
        ('{"api": {"host": "\\ud800"}}', "1: api.host", "half a character"),
        ('{"agents": {"defaults": {"model": "a\nb"}}}', "1:", "Invalid control character"),
    ],
)
def test_a_file_that_does_not_parse_says_where(config_file, content, place, words):
    path = config_file(content)
    before = path.read_bytes()

    said = refusal(path)

    assert words in said
    assert str(path) in said
    if place:
        assert f"{path}:{place}" in said
    assert path.read_bytes() == before


def test_a_folder_and_a_file_without_permission_are_said(tmp_path, config_file):
    assert "is a folder" in refusal(tmp_path)
    path = config_file({})
    path.chmod(0)
    if os.name == "posix" and os.geteuid() != 0:
        assert "Permission denied" in refusal(path)
    assert f"{path} is a file where a folder should be" in refusal(path / "below")


# Every line is a config that must stop the command: key, value, and a word of what was expected.
TABLE: list[tuple[str, list[Any], str]] = [
    ("agents.defaults.maxTokens", ["many", 0, -1, 1.5, True, None, [], {}], ""),
    ("agents.defaults.temperature", ["hot", -0.1, 2.1, True, None, [], {}, "nan"], ""),
    ("agents.defaults.model", ["", 5, None, True, [], {}], "string"),
    ("agents.defaults.workspace", ["", "a\0b", 5, None, []], ""),
    ("agents.defaults.provider", ["opnai", "nobody", 5, [], {}], ""),
    ("agents.defaults.steering", ["jion", None, True, 0], "one of join, queue"),
    ("agents.defaults.providerRetryMode", ["persistentt", None, 1], "persistent"),
    ("agents.defaults.reasoningEffort", ["hihg", 3, True], "high"),
    ("agents.defaults.modelPreset", ["gone", 5, []], ""),
    ("agents.defaults.fallbackModels", ["x", None, {}, 5], "list"),
    ("agents.defaults.fallbackModels", [["gone"], [""], [{"model": ""}], [{"model": "m", "provider": "opnai"}]], "[0]"),
    ("agents.defaults.timezone", ["Europe/Atlantis", 5, "../etc/passwd"], ""),
    ("agents.defaults.unifiedSession", ["maybe", 2, None, []], "true or false"),
    ("agents.defaults", [[], "x", None, 5], "object"),
    ("agents", [[], "x", None, 5, True], "object"),
    ("channels.telegram", [[], "on", None, True], "object"),
    ("channels.telegram.enabled", ["perhaps", None, 2, []], "true or false"),
    ("channels.telegram.allowFrom", ["123", None, {}, [None], [True], [[]]], ""),
    ("channels.telegram.groupPolicy", ["mentoin", None, True], "mention"),
    ("channels.email.imapPort", [0, 65536, "x", None, True], ""),
    ("channels.discord.gatewayUrl", ["http://x", "", None, 5], ""),
    ("channels.slack.dm", [True, [], "open"], "object"),
    ("channels.sendMaxRetries", [-1, 11, "x", None], ""),
    ("providers.openai", ["sk-x", [], None], "object"),
    ("providers.openai.apiKey", [5, [], {}, True], "string"),
    ("providers.openai.apiBase", ["api.openai.com", "ftp://x"], "http"),
    ("providers.openai.extraHeaders", [{"": "x"}, {"a b": "x"}, {"naïve": "x"}], "HTTP header names"),
    ("providers.openai.extraHeaders", [{"X": "a\nb"}, {"X": "a\0"}, {"X": "ü"}], "printable one-line values"),
    ("providers.openai.backend", ["dierct", None], "direct"),
    ("providers.openai.totalTimeoutS", [0, -1, "x"], ""),
    ("providers.my-own", ["x", [], 5], "object"),
    ("gateway.port", [0, -1, 65536, "http", None, 18790.5], ""),
    ("gateway.heartbeat.intervalS", [0, "x", None], ""),
    ("api.timeout", [0, -5, "x", None, True], ""),
    ("channels.msteams.path", ["hook"], "a text that matches ^/"),
    ("tools.restrictToWorkspace", ["yes please", None, 2, [], {}], "true or false"),
    ("tools.approval", ["never", "of", None, False], "ask, deny, off"),
    ("tools.ssrfWhitelist", ["10.0.0.0/8", ["10.0.0.0/99"], ["home"], None], ""),
    ("tools.exec.sandbox", ["bwarp", None, False, True], "bwrap"),
    ("tools.exec.timeout", [0, -1, "x"], ""),
    ("tools.exec.denyPatterns", [["("], "rm", None, [5]], ""),
    ("tools.exec.network", ["off-ish", None, 3], "true or false"),
    ("tools.mcpServers", [[], "x", None], "object"),
    ("tools.mcpServers.x", [[], "x", None], "object"),
    ("tools.mcpServers.x.type", ["telnet", 5], "stdio"),
    ("tools.web.search.maxResults", [0, 51, "x", None], ""),
    ("limits.dailyUsd", [-1, "x", True], ""),
    ("modelPresets.fast", [{}, "x", None, {"model": ""}], ""),
]


def nested(key, value):
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize(("key", "values", "words"), TABLE)
def test_a_bad_value_stops_the_command_and_names_its_key(config_file, key, values, words):
    for value in values:
        path = config_file(nested(key, value))
        before = path.read_bytes()

        said = refusal(path)

        assert key in said, value
        assert words in said, value
        assert re.match(re.escape(str(path)) + r":\d+: ", said)
        assert path.read_bytes() == before


SAID: list[tuple[str, list[str]]] = [
    (
        '{\n  "tools": {\n    "exec": {\n      "sandbox": "bwarp"\n    }\n  }\n}',
        [':4: tools.exec.sandbox must be one of auto, bwrap, none (did you mean bwrap?), not "bwarp".'],
    ),
    (
        '{"api": {"port": 0},\n "gateway": {"port": "x"}}',
        [':2: gateway.port must be a whole number, not "x".', ":1: api.port must be at least 1, not 0."],
    ),
    (
        '{"tools": {"ssrfWhitelist": ["10.0.0.0/8", "10.0.0.0/33"]}}',
        ["such as 192.168.1.0/24; '10.0.0.0/33' is not one."],
    ),
    (
        '{"tools": {"exec": {"denyPatterns": ["("]}}}',
        ["'(' is not one: missing ), unterminated subpattern at position 0."],
    ),
    (
        '{"agents": {"defaults": {\n"maxTokens": 5,\n"max_tokens": 6}}}',
        ["agents.defaults.maxTokens occurs twice, in two spellings. Keep one."],
    ),
    (
        '{"tools": {\n"exec": {\n"restrictToWorkspace": "x"}}}',
        [':3: tools.restrictToWorkspace must be true or false, not "x".'],
    ),
    (
        '{"providers": {\n"openai": {"apiKey": "${NOT_THERE}"}}}',
        [":2: providers.openai.apiKey needs the environment variable NOT_THERE"],
    ),
    (
        '{"providers": {\n"openai": {\n"apiKey": "file:nowhere"}}}',
        [":3: providers.openai.apiKey needs the file nowhere, which cannot be"],
    ),
]


@pytest.mark.parametrize(("text", "expected"), SAID)
def test_a_problem_names_the_line_the_key_and_what_was_meant_and_all_are_told_at_once(config_file, text, expected):
    path = config_file(text)

    said = refusal(path).splitlines()

    assert len(said) == len(expected)
    assert all(line.startswith(f"{path}:") and words in line for line, words in zip(said, expected, strict=True))


@pytest.mark.parametrize(
    "config",
    [
        {"channels": {"telegram": {"token": 1234}}},
        {"providers": {"openai": "geheim-1234"}},
        {"providers": {"openai": {"extraHeaders": [{"X-Account": "geheim-1234"}]}}},
        {"channels": {"telegram": ["geheim-1234"]}},
        {"tools": {"mcpServers": {"x": {"env": "A=geheim-1234"}}}},
    ],
)
def test_a_key_of_the_wrong_kind_or_at_the_wrong_place_is_not_quoted(config_file, config):
    said = refusal(config_file(config))

    assert "geheim" not in said and "1234" not in said


def test_an_unknown_key_is_told_with_its_nearest_name(config_file):
    path = config_file(
        '{\n"agents": {"defaults": {"modelx": "x"}},\n"tool": {},\n"channels": {"telegrm": {}, "irc": {}}}'
    )

    assert load_warnings(load_config(path)) == (
        f"{path}:2: agents.defaults.modelx is not a known key. Did you mean model?",
        f"{path}:3: tool is not a known key. Did you mean tools?",
        f"{path}:4: channels.telegrm is not a known key. Did you mean telegram?",
    )


@pytest.mark.parametrize(
    ("config", "written", "meant"),
    [
        ({"tools": {"restrictToWorkSpace": True}}, "tools.restrictToWorkSpace", "tools.restrictToWorkspace"),
        ({"tool": {"restrictToWorkspace": True}}, "tool.restrictToWorkspace", "tools.restrictToWorkspace"),
        ({"restrictToWorkspace": True}, "restrictToWorkspace", "tools.restrictToWorkspace"),
        ({"tools": {"exce": {"network": False}}}, "tools.exce.network", "tools.exec.network"),
        ({"tools": {"denyPatterns": ["rm"]}}, "tools.denyPatterns", "tools.exec.denyPatterns"),
        ({"tools": {"web": {"enabled": False}}}, "tools.web.enabled", "tools.web.enable"),
        ({"limits": {"dailyUSD": 1}}, "limits.dailyUSD", "limits.dailyUsd"),
        (
            {"channels": {"slack": {"groupPolcy": "allowlist"}}},
            "channels.slack.groupPolcy",
            "channels.slack.groupPolicy",
        ),
        (
            {"tools": {"mcpServers": {"time": {"command": "time", "enabledTool": ["now"]}}}},
            "tools.mcpServers.time.enabledTool",
            "tools.mcpServers.time.enabledTools",
        ),
    ],
)
def test_a_misspelt_restriction_is_refused_with_file_line_key_and_the_known_name(config_file, config, written, meant):
    path = config_file(config)
    name = written.rpartition(".")[2]
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if f'"{name}"' in text)

    said = refusal(path)

    assert said.startswith(f"{path}:{line}: {written} ")
    assert f"Did you mean {meant}?" in said


def test_an_old_key_that_asks_for_what_is_not_there_is_told_at_its_line(config_file):
    path = config_file(
        '{"providers": {"openai": {"apiType": null, "thinkingStyle": null},\n'
        '"deepseek": {\n"apiType": "responses",\n"thinkingStyle": "enable_thinking"}}}'
    )

    warnings = load_warnings(load_config(path))

    assert [warning.partition(" is not used")[0] for warning in warnings] == [
        f"{path}:4: providers.deepseek.thinkingStyle",
    ]


def test_misspelt_keys_that_restrict_nothing_are_kept_with_a_warning(config_file):
    config = load_config(
        config_file(
            {
                "tool": {"exec": {"timeout": 5}},
                "tools": {"exec": {"timeouts": 5}, "mcpServers": {"time": {"command": "time", "network": False}}},
                "channels": {"telegrm": {"groupPolicy": "allowlist"}},
                "plugins": {"a-package": {"approval": "no"}},
            }
        )
    )

    assert len(load_warnings(config)) == 4
    assert config.tools.exec.__pydantic_extra__ == {"timeouts": 5}


@pytest.mark.parametrize(
    ("tools", "restricts"),
    [
        ({"exec": {"restrictToWorkspace": True}}, True),
        ({"exec": {"restrict_to_workspace": True}}, True),
        ({"exec": {"restrictToWorkspace": True}, "restrict_to_workspace": False}, False),
    ],
)
def test_an_old_place_of_a_key_is_still_understood(config_file, tools, restricts):
    defaults = {"memoryWindow": 7, "session_ttl_minutes": 5}

    config = load_config(config_file({"tools": tools, "agents": {"defaults": defaults}}))

    assert config.tools.restrict_to_workspace is restricts
    assert (config.agents.defaults.memory_window, config.agents.defaults.idle_compact_after_minutes) == (7, 5)
    assert load_warnings(config) == ()


def test_an_enabled_channel_that_is_closed_is_told_with_the_pairing_command_until_somebody_has_paired(config_file):
    on = {"enabled": True}
    written = {
        "telegram": {**on, "allowFrom": []},
        "slack": {**on, "allowFrom": ["*"]},
        "irc": {**on, "allow_from": []},
    }
    config = load_config(config_file({"channels": written}))

    lines, later = closed_channels(config), closed_channels(config, paired={"telegram"})

    assert [line.split(".allowFrom")[0] for line in lines] == ["channels.telegram", "channels.irc"]
    assert all("nanobot pairing approve CODE" in line and "\n" not in line for line in lines)
    assert later == lines[1:]


def test_variables_in_texts_are_filled_in(config_file, monkeypatch):
    monkeypatch.setenv("KEY", "geheim")
    monkeypatch.setenv("PORT", "81")
    path = config_file(
        {"providers": {"openai": {"apiKey": "${KEY}", "extraHeaders": {"A": "Bearer ${KEY}!"}}},
         "api": {"port": "${PORT}"}, "tools": {"exec": {"denyPatterns": ["a${", "$KEY"]}}}
    )  # fmt: skip

    config = load_config(path)

    assert config.providers.openai.api_key == "geheim"
    assert config.providers.openai.extra_headers == {"A": "Bearer geheim!"}
    assert config.api.port == 81
    assert config.tools.exec.deny_patterns == ["a${", "$KEY"]


def test_the_environment_fills_only_what_the_file_leaves_open(config_file, monkeypatch):
    monkeypatch.setenv("NANOBOT_AGENTS__DEFAULTS__MODEL", "env-model")
    monkeypatch.setenv("NANOBOT_AGENTS__DEFAULTS__MAX_TOKENS", "123")
    monkeypatch.setenv("NANOBOT_AGENTS__DEFAULTS__DISABLED_SKILLS", '["a"]')
    monkeypatch.setenv("NANOBOT_PROVIDERS__LM_STUDIO__API_KEY", "k")
    monkeypatch.setenv("NANOBOT_TOOLS__EXEC__ENABLE", "false")
    monkeypatch.setenv("NANOBOT_TOOLS", '{"approval": "deny", "exec": {"timeout": 5, "enable": true}}')
    monkeypatch.setenv("NANOBOT_MAX_CONCURRENT_REQUESTS", "3")
    monkeypatch.setenv("NANOBOT_CHANNELS", "whatsapp")
    monkeypatch.setenv("NANOBOT_AGENTS__DEFAULTS__MODELX", "x")
    path = config_file({"agents": {"defaults": {"model": "file-model"}}})

    config = load_config(path)

    defaults = config.agents.defaults
    assert (defaults.model, defaults.max_tokens, defaults.disabled_skills) == ("file-model", 123, ["a"])
    assert config.providers.lm_studio.api_key == "k"
    assert (config.tools.approval, config.tools.exec.timeout, config.tools.exec.enable) == ("deny", 5, False)
    assert load_warnings(config) == (
        "NANOBOT_AGENTS__DEFAULTS__MODELX in the environment matches no key of the config.",
    )


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("NANOBOT_API__PORT", "http", "api.port must be a whole number"),
        ("NANOBOT_TOOLS__APPROVAL", "nope", "tools.approval must be one of"),
        ("NANOBOT_AGENTS__DEFAULTS__DISABLED_SKILLS", "a,b", "must contain a list"),
        ("NANOBOT_AGENTS__DEFAULTS__DISABLED_SKILLS", '"a"', "must contain a list"),
        ("NANOBOT_TOOLS__EXEC", "true", "must contain an object"),
        ("NANOBOT_AGENTS", "{", "must contain an object"),
        ("NANOBOT_TOOLS__RESTRICT_TO_WORKSPCE", "true", "Did you mean tools.restrictToWorkspace?"),
    ],
)
def test_a_bad_variable_is_named(config_file, monkeypatch, variable, value, words):
    monkeypatch.setenv(variable, value)

    said = refusal(config_file({}))

    assert said.startswith(variable)
    assert words in said


def test_a_file_cannot_steer_how_settings_are_read(config_file, home):
    (home / "evil.env").write_text("NANOBOT_API__PORT=6")
    path = config_file({"_env_file": str(home / "evil.env"), "_cli_parse_args": True, "self": 1, "model_config": 2})

    config = load_config(path)

    assert config.api.port == 8900


KEYS = [
    dotted(tuple("some" if part == "*" else part for part in path))
    for path, _ in Shape(Config).below()
    if "fallbackModels" not in path[:-1]
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(key=st.sampled_from(KEYS), value=JSON)
@example(key="agents.defaults.fallbackModels", value=[{"model": 5}, "gone", None])
@example(key="tools.mcpServers", value={"": {"env": None}})
def test_any_value_is_taken_or_refused_with_its_key(config_file, key, value):
    tree = nested(key, value)
    if key.startswith("modelPresets.some.") and key != "modelPresets.some.model":
        tree["modelPresets"]["some"]["model"] = "m"  # without one, the preset itself is wrong
    if ".prices.some." in key:
        provider = key.split(".")[1]
        price = tree["providers"][provider]["prices"]["some"]
        tree["providers"][provider]["prices"]["some"] = {"input": 1, "output": 1, **price}
    path = config_file(tree)

    try:
        load_config(path)
    except ConfigError as error:
        assert key in str(error)


@given(st.binary(max_size=60) | st.text(alphabet="{}[]\",:\\u0d8 \n/#'$ntrue1e9-", max_size=40).map(str.encode))
@example(b'{"a": "\\ud800"}')
@example(b'{"\\ud800": 1, "\\ud800": 2}')
@example(b'{"agents": {"defaults": {"provider": "\\udfff"}}}')
@example(b'{"x":' * 900 + b"1" + b"}" * 900)  # deep, but not too deep for every Python
def test_nothing_but_a_config_error_escapes(config_file, data):
    path = config_file(data)

    try:
        load_config(path)
    except ConfigError as error:
        str(error).encode()
