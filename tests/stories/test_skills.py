"""Every built-in skill is tried in a turn, with the very commands of its text and its real program where it is here.

The services that weather, github and clawhub ask stand on loopback, and answer as their public pages say.
"""

import asyncio
import json
import re
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import date, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from zipfile import ZipFile

import pytest

from nanobot.agent.skills.loader import SkillUsage
from nanobot.config.loader import load_config
from nanobot.config.schema import Config
from nanobot.gateway.service import Options, open_gateway
from nanobot.messages.types import ChatMessage, text_of
from nanobot.testing import Bot, Line, ScriptedProvider, calls, open_bot
from nanobot.utils.installation import skills_dir
from tests.fakes.platform_telegram import ANNA, TelegramPlatform
from tests.fakes.telegram import TOKEN
from tests.fakes.web import answer as response
from tests.fakes.web import serving
from tests.support.certificates import certificate
from tests.support.eventually import eventually
from tests.support.toy_gateway import free_port, written

Answer = tuple[str, bytes]
UNASKED = Config.model_validate({"tools": {"approval": "off"}})
"""Nobody is asked: what these turns do is what their person wants."""


def text_of_skill(name: str) -> str:
    return (skills_dir() / name / "SKILL.md").read_text(encoding="utf-8")


def commands(name: str, word: str) -> list[str]:
    """The lines of a skill's text that begin with this program, as an agent would type them."""
    return re.findall(rf"^[ ]*({re.escape(word)} .*?)(?: +#.*)?$", text_of_skill(name), re.MULTILINE)


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not here")


def results(bot: Bot) -> list[str]:
    """What the tools of the last turn said."""
    rows: list[ChatMessage] = bot.provider.requests[-1]
    return [text_of(row.get("content")) for row in rows if row["role"] == "tool"]


async def ran(home: Path, *wanted: str, config: Config = UNASKED) -> list[str]:
    """What these commands print, each in a call of its own, in one turn."""
    async with open_bot(home, *(calls(("exec", {"command": one})) for one in wanted), "done", config=config) as bot:
        assert await bot.say("do it") == "done"
        return results(bot)


@asynccontextmanager
async def service(
    answer: Callable[[str, Mapping[str, list[str]]], Answer | None], tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """A service on loopback: of a path and its query (of a post, its `body`), a type and what is sent."""

    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        request, _, body = head.partition("\r\n\r\n")
        address = urlsplit(request.split()[1])
        found = answer(address.path, {"body": [body]} if request.startswith("POST") else parse_qs(address.query))
        kind, data = found or ("text/plain", b"there is no such thing")
        status = "200 OK" if found else "404 Not Found"
        writer.write(response(data, f"Content-Type: {kind}", "Connection: close", status=status))

    async with serving(serve, tls) as server:
        yield f"http{'s' if tls else ''}://{'localhost' if tls else '127.0.0.1'}:{server.port}"


@needs("curl")
async def test_weather_by_its_own_commands(tmp_path: Path):
    """https://github.com/chubin/wttr.in and https://open-meteo.com/en/docs"""

    def weather(path: str, query: Mapping[str, list[str]]) -> Answer | None:
        if path == "/v1/search" and query["name"] == ["Lisbon"]:
            found = {"results": [{"name": "Lisbon", "latitude": 38.72, "longitude": -9.14}]}
            return "application/json", json.dumps(found).encode()
        if path == "/v1/forecast" and query["latitude"] == ["38.72"]:
            return "application/json", json.dumps(
                {"current": dict.fromkeys(query["current"][0].split(","), 21)}
            ).encode()
        if path in ("/Lisbon", "/New+York"):
            return "text/plain", f"{path[1:]} as {query['format'][0]}\n".encode()
        return None

    async with service(weather) as url:
        wanted = [re.sub(r"https://[\w.-]+", url, one) for one in commands("weather", "curl")]
        told = await ran(tmp_path, *wanted)

    assert len(told) == 4
    assert "Lisbon as 3" in told[0]
    assert "New+York as %l: %c %t (feels %f), wind %w, humidity %h" in told[1]
    assert '"latitude": 38.72' in told[2]
    assert '"temperature_2m": 21' in told[3]


@needs("tmux")
@needs("bwrap")  # Landlock alone closes the folder of its socket
async def test_tmux_by_its_own_commands(tmp_path: Path):
    start, type_, enter, look, listed, end = commands("tmux", "tmux")
    (wait,) = commands("tmux", "for")
    typed = type_.replace("python3 -q", 'PS1=">>> "; echo $((6 * 7))')

    try:
        told = await ran(tmp_path, start, typed, enter, wait, look, listed, end, listed)
    finally:
        await ran(tmp_path, "tmux -L nanobot kill-server")

    assert "\n42\n>>>" in told[4]
    assert "work: 1 windows" in told[5]
    assert "no server running" in told[7] or "error connecting" in told[7]


GITHUB = {
    "/repos/owner/name/releases/latest": {"tag_name": "v7"},
    "/repos/owner/name/actions/runs": {"total_count": 0, "workflow_runs": []},
}


@needs("gh")
async def test_github_by_its_own_commands(tmp_path: Path):
    """https://docs.github.com/rest and https://cli.github.com/manual/gh_api"""

    def api(path: str, query: Mapping[str, list[str]]) -> Answer | None:
        found = GITHUB.get(path.removeprefix("/api/v3"))
        return None if found is None else ("application/json", json.dumps(found).encode())

    (latest,) = commands("github", "gh api")
    async with service(api) as url:
        # `gh api` takes a whole address too; its own host it reaches by https alone
        asked = latest.replace("gh api repos/", f"gh api {url}/repos/")
        told = await ran(
            tmp_path, f"GH_TOKEN=k GH_CONFIG_DIR=$PWD/.gh {asked}", "GH_CONFIG_DIR=$PWD/.gh gh auth status"
        )

    assert told[0].startswith("v7")
    assert "gh auth login" in told[1]


_ISSUE = {"number": 12, "title": "Plums", "state": "OPEN", "url": "https://x/12", "updatedAt": "2026-01-02T03:04:05Z"}
_PULL = {"number": 34, "title": "Pears", "state": "OPEN", "url": "https://x/34", "headRefName": "pears", "id": "P34"}
GRAPHQL: dict[str, dict[str, Any]] = {
    "query IssueList": {"hasIssuesEnabled": True, "issues": {"totalCount": 1, "nodes": [_ISSUE]}},
    "query PullRequestList": {
        "pullRequests": {"totalCount": 1, "nodes": [{**_PULL, "author": {"login": "ann", "id": "U1"}}]},
    },
    "query PullRequestByNumber": {"pullRequest": _PULL},
}
"""What `repository` is in the answer to each."""
COMMENTED = {"addComment": {"commentEdge": {"node": {"url": "https://x/34#1"}}}}


@needs("gh")
async def test_github_by_its_look_and_its_change_over_tls(tmp_path: Path):
    """https://docs.github.com/graphql: issues and pull requests are listed, one is read and answered."""
    sent: list[str] = []

    def api(path: str, query: Mapping[str, list[str]]) -> Answer | None:
        if path == "/api/graphql":
            sent.extend(query["body"])
            repository = [{"repository": value} for name, value in GRAPHQL.items() if name in sent[-1]]
            commented = [COMMENTED] * ("mutation CommentCreate" in sent[-1])
            data: dict[str, Any] = next(iter([*repository, *commented]), {})
            return "application/json", json.dumps({"data": data}).encode()
        if path == "/api/v3/repos/owner/name/pulls/34":
            return "text/plain", b"+pears\n"
        return None

    (workspace := tmp_path / "workspace").mkdir()
    (workspace / "notes.md").write_text("They are ripe.", encoding="utf-8")
    authority, tls = certificate(workspace)
    wanted = re.compile("gh (issue list|pr list|pr diff|pr comment)")  # what every release of gh asks in the same way
    async with service(api, tls) as url:
        host = url.removeprefix("https://")
        login = f"GH_HOST={host} GH_ENTERPRISE_TOKEN=k GH_CONFIG_DIR=$PWD/.gh SSL_CERT_FILE=$PWD/{authority.name} "
        asked = [login + one for one in commands("github", "gh") if wanted.match(one)]
        told = await ran(tmp_path, *asked)

    issues, pulls, diff, fields, answered = told
    assert "Plums" in issues
    assert "Pears" in pulls
    assert "+pears" in diff
    assert "34 Pears (ann)" in fields
    assert "https://x/34#1" in answered
    assert "They are ripe." in sent[-1]


@needs("gh")
def test_every_command_of_the_github_skill_is_one_of_gh():
    for one in commands("github", "gh"):
        words = one.split()[: 2 if one.startswith("gh api") else 3]
        help_ = subprocess.run([*words, "--help"], capture_output=True, text=True, check=True).stdout

        assert [flag for flag in re.findall(r" (--[a-z-]+)", one) if flag not in help_] == []


@needs("clawhub")
async def test_clawhub_by_its_own_commands_then_by_ours(tmp_path: Path):
    """https://docs.openclaw.ai/tools/clawhub: search, inspect and install, from a registry on loopback"""
    version = {"version": "1.0.0", "createdAt": 1, "changelog": ""}
    skill = {
        "slug": "tea",
        "displayName": "Tea",
        "summary": "Make good tea.",
        "tags": {},
        "createdAt": 1,
        "updatedAt": 1,
    }
    files = [{"path": "SKILL.md", "size": 9, "sha256": "0" * 64, "contentType": "text/markdown"}]
    packed = BytesIO()
    with ZipFile(packed, "w") as archive:
        archive.writestr("SKILL.md", "---\nname: tea\ndescription: Make good tea.\n---\nBoil.\n")
        archive.writestr("_meta.json", '{"slug": "tea", "version": "1.0.0"}')
    answers: dict[str, Any] = {
        "/api/v1/search": {"results": [{"score": 1.0, "version": "1.0.0", **skill}]},
        "/api/v1/skills/tea": {"skill": {**skill, "stats": {}}, "latestVersion": version, "owner": {"handle": "ann"}},
        "/api/v1/skills/tea/versions/1.0.0": {"skill": skill, "version": {**version, "files": files}},
    }

    def registry(path: str, query: Mapping[str, list[str]]) -> Answer | None:
        if path.endswith("/download"):
            return "application/zip", packed.getvalue()
        if path.endswith("/file"):
            return "text/plain", b"---\nname: tea\n---\nBoil.\n"
        return ("application/json", json.dumps(answers[path]).encode()) if path in answers else None

    async with service(registry) as url:
        prefix = f"CLAWHUB_REGISTRY={url} CLAWHUB_DISABLE_TELEMETRY=1 CLAWHUB_CONFIG_PATH=$PWD/.hub.json "
        wanted = [prefix + one.replace("SLUG", "tea") for one in commands("clawhub", "clawhub")]
        told = await ran(tmp_path, *wanted)

    assert len(told) == 4
    assert "tea" in told[0] and "SKILL.md" in told[1] and "Boil." in told[2]
    _hand_over(tmp_path / "workspace" / "inbox" / "clawhub" / "skills" / "tea", tmp_path)


def test_what_clawhub_leaves_is_installed_by_us(tmp_path: Path):
    folder = tmp_path / "workspace" / "inbox" / "clawhub" / "skills" / "tea"
    (folder / ".clawhub").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: tea\ndescription: Make good tea.\n---\nBoil.\n", encoding="utf-8")
    (folder / "_meta.json").write_text('{"slug": "tea", "version": "1.0.0"}', encoding="utf-8")
    (folder / ".clawhub" / "origin.json").write_text('{"version": 1, "slug": "tea"}', encoding="utf-8")

    _hand_over(folder, tmp_path)


def _hand_over(folder: Path, home: Path) -> None:
    """The last step of the skill: what the person types."""
    from typer.testing import CliRunner

    from nanobot.cli.main import app

    (typed,) = commands("clawhub", "nanobot skills install")
    words = [*typed.split()[1:-1], str(folder), "-w", str(home / "workspace")]
    done = CliRunner().invoke(app, words, input="y\n")
    assert done.exit_code == 0, done.output
    assert (home / "workspace" / "skills" / "tea" / "SKILL.md").is_file()


async def test_cron_by_every_row_of_its_table(tmp_path: Path):
    told = re.findall(r"`(?:action: add, )?(at|every_seconds|cron_expr): \"?([^`\"]+)\"?`", text_of_skill("cron"))
    later = {"at": "2126-05-03T18:00"}
    added = [
        calls(("cron", {"action": "add", "message": "tea", "name": f"tea {number}", kind: later.get(kind, value)}))
        for number, (kind, value) in enumerate(told)
    ]
    for one in added:
        arguments = one.tool_calls[0].arguments
        if "every_seconds" in arguments:
            arguments["every_seconds"] = int(arguments["every_seconds"])
    async with open_bot(tmp_path, *added, calls(("cron", {"action": "list"})), "done", config=UNASKED) as bot:
        await bot.say("remind me")
        said = results(bot)

    assert [kind for kind, _ in told] == ["at", "every_seconds", "cron_expr", "cron_expr"]
    assert [one for one in said if one.startswith("Error")] == []
    assert said[-1].count("tea") == 4


async def test_memory_keeps_a_fact_for_the_next_prompt(tmp_path: Path):
    fact = {"path": "memory/MEMORY.md", "content": "# Long-term Memory\n\n- Likes plums.\n"}
    script: list[Line] = [
        calls(("write_file", fact)),
        "noted",
        calls(("grep", {"pattern": "plums", "path": "memory"})),
        "plums",
    ]
    async with open_bot(tmp_path, *script, config=UNASKED) as bot:
        await bot.say("remember that I like plums")
        await bot.say("what do I like?")

        assert "Likes plums." in str(bot.provider.requests[-1][0]["content"])
        assert "plums" in results(bot)[-1]


async def test_a_skill_that_the_agent_writes_is_there_at_the_next_turn(tmp_path: Path):
    example = re.search(r"```\n(---\nname: tax-receipts.*?)```", text_of_skill("skill-creator"), re.DOTALL)
    assert example is not None
    made = {"path": "skills/tax-receipts/SKILL.md", "content": example[1]}
    async with open_bot(tmp_path, calls(("write_file", made)), "made", "yes", config=UNASKED) as bot:
        await bot.say("make a skill of it")
        await bot.say("do you know it?")

        assert "<name>tax-receipts</name>" in str(bot.provider.requests[-1][0]["content"])
        assert "<name>tax-receipts</name>" not in str(bot.provider.requests[0][0]["content"])


async def test_summarize_reads_a_page_and_a_long_file_in_parts(tmp_path: Path):
    page = b"<html><body><article><h1>Plums</h1>" + b"<p>Plums ripen in August.</p>" * 30 + b"</article></body></html>"
    config = Config.model_validate({"tools": {"approval": "off", "ssrfWhitelist": ["127.0.0.0/8"]}})
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "long.log").write_text("a line\n" * 5_000 + "the end\n", encoding="utf-8")
    async with service(lambda path, query: ("text/html", page)) as url:
        script: list[Line] = [
            calls(("web_fetch", {"url": f"{url}/plums"})),
            calls(("exec", {"command": "wc -c long.log"})),
            calls(("read_file", {"path": "long.log", "offset": 4_990, "limit": 20})),
            "Plums ripen in August.",
        ]
        async with open_bot(tmp_path, *script, config=config) as bot:
            await bot.say("sum up the page and the log")
            told = results(bot)

    assert "Plums ripen in August." in told[0]
    assert "35008 long.log" in told[1]
    assert "the end" in told[2]


async def test_a_sticker_is_sent_by_its_name(tmp_path: Path):
    workspace = tmp_path / "home" / "workspace"
    (workspace / "stickers").mkdir(parents=True)
    index = re.search(r"```\n(\{.*?\})\n```", text_of_skill("stickers"), re.DOTALL)
    assert index is not None
    (workspace / "stickers" / "index.json").write_text(index[1], encoding="utf-8")
    (workspace / "stickers" / "wave.webp").write_bytes(b"RIFF\x1a\0\0\0WEBPVP8L")
    send = {"content": "", "media": [json.loads(index[1])["wave"]]}
    script: list[Line] = [calls(("read_file", {"path": "stickers/index.json"})), calls(("message", send)), "wave"]
    (folder := tmp_path / "platform").mkdir()
    async with TelegramPlatform(folder).open() as telegram:
        channel = {"enabled": True, "token": TOKEN, "apiBase": telegram.server.url, "allowFrom": [str(ANNA)]}
        written(
            tmp_path / "home" / "config.json", {"channels": {"telegram": channel}, "gateway": {"port": free_port()}}
        )
        written(tmp_path / "home" / "pairing.json", {"owners": {"telegram": [str(ANNA)]}, "approved": {}})
        async with open_gateway(
            load_config(tmp_path / "home" / "config.json"),
            data_dir=tmp_path / "home",
            workspace=workspace,
            options=Options(turns_s=0.05),
            provider=ScriptedProvider(*script),
            environ={},
        ):
            await telegram.says("wave at me")
            await eventually(lambda: len(telegram.shown()) >= 2)

        assert [name for one in telegram.shown() for name in one.files] == ["wave.webp"]
        assert [one.text for one in telegram.shown() if not one.files] == ["wave"]


async def test_skills_says_in_a_chat_which_there_are(tmp_path: Path):
    path = tmp_path / "workspace" / "skills" / "fly" / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text(
        '---\ndescription: How to fly\nmetadata: {"nanobot": {"requires": {"bins": ["no-wings"]}}}\n---\n',
        encoding="utf-8",
    )
    async with open_bot(tmp_path) as bot:
        told = await bot.say("/skills")

    assert "fly: How to fly\n  needs program: no-wings\n" in told
    assert {line.partition(":")[0] for line in told.splitlines() if not line.startswith(" ")} == {
        "fly",
        *(folder.name for folder in skills_dir().iterdir()),
    }


async def test_a_setting_that_a_skill_needs_is_looked_up_in_the_config(tmp_path: Path):
    path = tmp_path / "workspace" / "skills" / "post" / "SKILL.md"
    path.parent.mkdir(parents=True)
    keys = ["channels.telegram.token", "channels.telegram", "tools.exec.allowedEnvKeys", "tools.exec.pathAppend"]
    ours = json.dumps({"openclaw": {"requires": {"config": keys}}})
    path.write_text(f"---\ndescription: Post\nmetadata: {ours}\n---\n", encoding="utf-8")
    config = Config.model_validate({"tools": {"exec": {"allowedEnvKeys": ["CUP"]}}})
    async with open_bot(tmp_path, config=config) as bot:
        told = await bot.say("/skills")

    missing = ", ".join(f"setting: {key}" for key in keys if "allowedEnvKeys" not in key)
    assert f"post: Post\n  needs {missing}\n" in told


async def test_a_skill_that_is_read_is_remembered_for_the_sessions_of_later_days(tmp_path: Path):
    read = calls(("read_file", {"path": str(skills_dir() / "weather" / "SKILL.md")}))
    run = calls(("exec", {"command": "ls skills/plum/ || true"}))
    path = tmp_path / "workspace" / "skills" / "plum" / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text("Plums.", encoding="utf-8")
    async with open_bot(tmp_path, read, run, "done", config=UNASKED) as bot:
        await bot.say("use $cron")

    scores = SkillUsage(tmp_path / "state" / "nanobot.db").scores(date.today() + timedelta(days=1))
    assert sorted(scores) == ["cron", "plum", "weather"]
