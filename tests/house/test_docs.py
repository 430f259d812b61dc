"""What the pages say is so: configs load, commands exist, links lead somewhere, set-up is the README's own."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic.alias_generators import to_snake
from typer.testing import CliRunner

from nanobot.cli.main import DEFAULT_COMMANDS, TYPER_USAGE_ERROR, app
from nanobot.config.channels import ChannelsConfig
from nanobot.config.keypath import camel
from nanobot.config.loader import load_config, load_warnings
from nanobot.config.schema import Config, LimitsConfig, ProviderConfig
from nanobot.providers import errors as provider_errors
from nanobot.providers.accounts.store import Account, AccountStore
from nanobot.testing import calls, open_bot
from tests.house.repo import ROOT, documents, text_of, tracked_files

_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"(?:^|[|;&/\\]) *nanobot +([a-z][a-z-]*)(?: +([a-z][a-z-]*))?", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
_MACHINE_PATH = re.compile(r"(?:^|[^A-Za-z0-9_.])/(?:work|farm|root)/")


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in _FENCE.findall(text_of(page)) if kind == language]


CONFIGS = {
    f"{page_name(page)}-{number}": body for page in documents() for number, body in enumerate(blocks(page, "json"), 1)
}


@pytest.mark.parametrize("body", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_config_in_the_pages_loads_and_every_key_of_it_is_known(body, tmp_path, monkeypatch):
    for name in re.findall(r"\$\{(\w+)\}", body):
        monkeypatch.setenv(name, "a-key")
    path = tmp_path / "config.json"
    path.write_text(body, encoding="utf-8")

    config = load_config(path, secrets=False)

    assert load_warnings(config) == ()
    assert json.loads(body)


SNIPPETS = {
    f"{page_name(page)}-{number}": body for page in documents() for number, body in enumerate(blocks(page, "python"), 1)
}


@pytest.mark.parametrize("body", SNIPPETS.values(), ids=SNIPPETS.keys())
def test_python_in_the_pages_runs(body):
    exec(compile(body, "a page", "exec"), {"__name__": "page"})


def test_every_block_in_the_pages_is_of_a_kind_that_is_tried_or_is_plain_text():
    pages = [page for page in documents() if not {"skills", "templates"} & {*page.parts}]  # those are for the agent

    kinds = {kind for page in pages for kind, _ in _FENCE.findall(text_of(page))}

    assert kinds <= {"json", "python", "sh", "bash", "powershell", "text"}


_KEY_ROW = re.compile(r"^\| `((?:agents|channels|limits|providers)\.[\w.]+)` \| `?([^|`:]+)[^|]*\|", re.MULTILINE)
KEYS = dict(_KEY_ROW.findall(text_of(ROOT / "docs" / "configuration.md")))


@pytest.mark.parametrize(("key", "told"), KEYS.items())
def test_a_key_in_the_tables_exists_and_its_default_is_as_told(key, told):
    section = Config()
    *way, last = key.replace("NAME", "openai").split(".")
    for name in way:
        section = getattr(section, to_snake(name))

    default = getattr(section, to_snake(last))

    words: dict[str, tuple[object, ...]] = {
        "none": (None, [], {}),
        "by the model": (None,),
        "true": (True,),
        "false": (False,),
    }
    expected = words.get(told.strip(), (told.strip(),))
    assert default in expected or str(default) in expected


def test_every_key_of_turns_models_and_money_is_in_a_table():
    defaults = ("fallback_models", "provider_retry_mode", "steering", "idle_compact_after_minutes", "background_model")
    channels = [name for name in ChannelsConfig.model_fields if name.startswith("transcription")]
    timeouts = [name for name in ProviderConfig.model_fields if name.endswith("timeout_s")]
    wanted = {
        *(f"agents.defaults.{camel(name)}" for name in defaults),
        *(f"channels.{camel(name)}" for name in channels),
        *(f"providers.NAME.{camel(name)}" for name in timeouts),
        *(f"limits.{camel(name)}" for name in LimitsConfig.model_fields),
    }

    assert wanted - KEYS.keys() == set()


async def test_every_file_under_state_is_listed(tmp_path):
    section = text_of(ROOT / "docs" / "formats.md").partition("\n## State\n")[2].partition("\n## ")[0]
    named = [code for row in re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE) for code in _CODE.findall(row)]
    known = [re.compile(re.sub(r"<\w+>|Y+-M+", "[^/]+", re.escape(name).replace(r"\-", "-"))) for name in named]
    config = Config.model_validate({"limits": {"dailyUsd": 0.000001, "unknownPrice": "allow"}})
    async with open_bot(tmp_path, config=config) as bot:
        bot.provider.script(calls(("list_dir", {"path": "."})), "done")
        await bot.say("look")
        during = list(state_files(bot.home))
    account = Account("openai_codex", "https://auth.example.com", "a grant")
    store = AccountStore.in_state(bot.home / "state")
    async with store.lock(account.provider):
        store.save(account)

    found = {*during, *state_files(bot.home)}

    assert [name for name in sorted(found) if not any(one.fullmatch(name) for one in known)] == []
    assert "nanobot.db" in found


def state_files(data_dir: Path) -> Iterator[str]:
    state = data_dir / "state"
    return (path.relative_to(state).as_posix() for path in state.rglob("*") if path.is_file())


def commands_named_in(page: Path) -> set[tuple[str, str]]:
    text = text_of(page)
    code = [body for _, body in _FENCE.findall(text)] + _CODE.findall(_FENCE.sub("", text))
    return {match for piece in code for match in _COMMAND.findall(piece)}


def test_every_command_in_the_pages_exists():
    known = typer.main.get_command(app)
    pages = [page for page in documents() if page.parts[-2] != "decisions"]

    unknown = []
    for page in pages:
        for first, named in commands_named_in(page):
            second = named or DEFAULT_COMMANDS.get(first, "")
            group = getattr(known, "commands", {}).get(first)
            members = getattr(group, "commands", None)
            if group is None or (members is not None and (second or DEFAULT_COMMANDS.get(first)) not in members):
                unknown.append(f"{page_name(page)}: nanobot {first} {second}")

    assert unknown == []
    assert any(commands_named_in(page) for page in pages)


def options_named_in(page: Path) -> set[tuple[str, str, str]]:
    """(command, its subcommand or "", option) for every line of code that calls us."""
    lines = [line for body in blocks(page, "sh") + blocks(page, "bash") for line in body.splitlines()]
    lines += _CODE.findall(_FENCE.sub("", text_of(page)))
    found = set()
    for line in lines:
        code = re.sub(r'"[^"]*"|#.*', "", line)
        for match in _COMMAND.finditer(code):
            found |= {(*match.groups(""), option) for option in _OPTION.findall(code[match.end() :])}
    return found


def test_every_option_in_the_pages_exists():
    named = {option for page in documents() for option in options_named_in(page)}

    helps = {
        (first, second): CliRunner().invoke(app, [*filter(None, (first, second)), "--help"]).output
        for first, second, _ in named
    }

    assert [row for row in named if not re.search(rf"(?<![\w-]){row[2]}\b", helps[row[0], row[1]])] == []
    assert ("agent", "", "-m") in named


def test_the_words_of_the_container_are_known(monkeypatch, tmp_path):
    text = text_of(ROOT / "docs" / "guides" / "deploy" / "Dockerfile")
    (health,) = re.findall(r'HEALTHCHECK [^\[]*CMD (\["nanobot".*\])', text)
    for name, value in re.findall(r"(NANOBOT_\w+)=(\S+)", text):
        monkeypatch.setenv(name, value)

    config = load_config(tmp_path / "config.json")
    helped = CliRunner().invoke(app, [*json.loads(health)[1:], "--help"])

    assert (config.gateway.host, config.agents.defaults.workspace) == ("0.0.0.0", "/data/workspace")
    assert helped.exit_code == 0


def lines_for_us(page: Path) -> Iterator[list[str]]:
    """The words behind `nanobot` of every line that a shell is to run."""
    for body in blocks(page, "sh") + blocks(page, "bash"):
        for line in body.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            last = words[words.index("|") + 1 :] if "|" in words else words
            if last and last[0].rpartition("/")[2] == "nanobot":
                yield last[1:]


def test_every_line_for_a_shell_has_the_words_its_command_wants():
    refused = []
    for page in documents():
        for words in lines_for_us(page):
            try:
                parsed(words)
            except TYPER_USAGE_ERROR as error:
                refused.append(f"{page_name(page)}: nanobot {shlex.join(words)}: {error}")

    assert refused == []
    with pytest.raises(TYPER_USAGE_ERROR):
        parsed(["send", "--channel", "telegram"])


def parsed(words: list[str]) -> None:
    """Read the words as the command line does, down to the command itself, and run nothing."""
    command: Any = typer.main.get_command(app)
    rest = [*words]
    is_option = bool(rest) and rest[0].startswith("-") and not command.commands.keys() & {*rest}
    if not rest or " " in rest[0] or is_option:  # the chat, or a message
        rest = ["agent", *rest]
    while commands := getattr(command, "commands", None):
        command = commands[rest.pop(0) if rest and rest[0] in commands else DEFAULT_COMMANDS[command.name]]
    command.make_context(command.name, rest)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", _FENCE.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_link_within_the_house_leads_somewhere():
    broken = []
    for page in documents():
        for link in _LINK.findall(_FENCE.sub("", text_of(page))):
            if "://" in link or link.startswith("mailto:"):
                continue
            target, _, anchor = link.partition("#")
            place = (page.parent / target).resolve() if target else page
            if not place.exists() or (anchor and anchor not in anchors(place)):
                broken.append(f"{page_name(page)}: {link}")

    assert broken == []


def test_every_decision_is_in_the_index():
    folder = ROOT / "docs" / "decisions"
    index = text_of(folder / "README.md")

    assert [path.name for path in sorted(folder.glob("[0-9]*.md")) if f"({path.name})" not in index] == []


_PLATFORMS_WORDS = """bot was blocked by the user, chat not found, file is too big, missing permissions, missing access,
cannot send messages to this user, no module named""".replace("\n", " ").split(", ")


def quoted_messages() -> Iterator[tuple[str, str]]:
    """(page, piece) of every message in the tables of messages; "..." in a page stands for what differs."""
    for page in documents():
        is_message = False
        for line in text_of(page).splitlines():
            first = line.split("|")[1].strip() if line.startswith("|") else ""
            is_message = first in ("Message", "Log line") or (is_message and bool(first))
            for quoted in _CODE.findall(first) if is_message else ():
                for piece in quoted.split("..."):
                    if len(piece.split()) > 1:
                        yield page_name(page), piece.strip(" :;,.()").lower()


def source_text() -> str:
    """The code of nanobot, with split texts joined, in lower case."""
    sources = [
        text_of(path) for path in tracked_files() if path.match("*.py") and path.is_relative_to(ROOT / "nanobot")
    ]
    literals_joined = re.sub(r'"\s*\n\s*f?"|\\\n|`', "", "\n".join(sources))
    return " ".join(literals_joined.lower().split())


def test_every_message_in_the_tables_is_one_that_nanobot_says():
    everything = source_text()

    missing = [piece for piece in quoted_messages() if piece[1] not in everything]

    assert [(page, piece) for page, piece in missing if piece not in _PLATFORMS_WORDS] == []
    assert ("docs/guides/gateway.md", "no channel is enabled in") in quoted_messages()


def test_troubleshooting_quotes_messages_exactly_and_has_every_failure_of_a_model():
    page = text_of(ROOT / "docs" / "guides" / "troubleshooting.md")
    headings = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    pieces = {piece.strip(" :;,.()").lower() for heading in headings for piece in heading.split("...")}
    everything = source_text()

    kinds = [kind for kind in vars(provider_errors).values() if isinstance(kind, type)]
    failures = {kind.what for kind in kinds if issubclass(kind, provider_errors.ModelCallError)}

    assert [piece for piece in pieces if piece not in everything] == []
    assert failures - set(headings) == set()


PAIRS = {
    "README.md": "README.zh-CN.md",
    "docs/guides/first-model.md": "docs/guides/first-model.zh-CN.md",
}


@pytest.mark.parametrize(("english", "chinese"), PAIRS.items())
def test_a_chinese_page_has_the_code_and_the_figures_of_the_english_one(english, chinese):
    pages = [text_of(ROOT / name) for name in (english, chinese)]

    code = [_FENCE.findall(page) for page in pages]
    figures = [re.findall(r"^\|.*\d.*\|$", page, re.MULTILINE) for page in pages]
    numbers = [[re.findall(r"\d[\d.,]*", row) for row in rows] for rows in figures]

    assert code[0] == code[1]
    assert numbers[0] == numbers[1]


def test_no_page_and_no_file_names_a_place_on_one_machine():
    found = [page_name(path) for path in tracked_files() if _MACHINE_PATH.search(text_of(path))]

    assert found == []


@pytest.mark.parametrize(("name", "shown"), [("terminal", "edit_file"), ("telegram", "groceries")])
def test_a_picture_in_the_readme_shows_a_real_chat_and_asks_no_server(name, shown):
    picture = text_of(ROOT / "docs" / f"{name}.svg")

    assert shown in picture
    assert f"docs/{name}.svg" in text_of(ROOT / "README.md")
    assert not re.search(r"/(?:tmp|home|Users|private)/", picture)
    assert set(re.findall(r"https?://[^\s\"')]+", picture)) <= {
        "http://www.w3.org/2000/svg",
        "https://www.textualize.io",
    }


def test_the_first_block_of_the_readme_installs_and_answers_and_the_second_runs_the_tests():
    first, second = blocks(ROOT / "README.md", "bash")[:2]

    assert first.rstrip().endswith('.venv/bin/nanobot agent -m "What is in my workspace?"')
    assert second.rstrip().endswith(".venv/bin/python -m pytest -q -n auto")


@pytest.mark.skipif(os.name == "nt" or shutil.which("bash") is None, reason="the CI script is for bash")
def test_ci_runs_the_first_two_blocks_of_the_readme_word_for_word():
    script = text_of(ROOT / ".ci" / "run")
    function = next(line for line in script.splitlines() if line.startswith("block()"))

    def cut(number: int) -> str:
        return subprocess.run(
            ["bash", "-c", f"{function}\nblock {number}"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout

    assert [cut(1), cut(2)] == blocks(ROOT / "README.md", "bash")[:2]
    assert 'pipefail -c "$first"' in script
    assert 'pipefail -c "$second"' in script
    assert "pip install" not in script
    what_failed_once_more, dead_code = " -q --lf --last-failed-no-failures none", " -q -m slow tests/house"
    assert re.findall(r"pytest(.*)", script) == [what_failed_once_more, dead_code]
    assert re.findall(r"sphinx-build(.*)", script) == [' -q -W --keep-going -b html docs "$HOME/site"']


def test_ci_on_github_runs_the_same_script():
    workflow = text_of(ROOT / ".github" / "workflows" / "ci.yml")

    assert "run: .ci/run" in workflow
    for command in blocks(ROOT / "README.md", "powershell")[0].splitlines():
        assert command in workflow
