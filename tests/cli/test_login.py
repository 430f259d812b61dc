"""`nanobot provider login` and `logout` as people run them: real processes, a scripted browser, a fake authority."""

import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanobot.cli.main import app
from nanobot.providers.accounts.store import Account, AccountStore
from nanobot.testing.model_server import Calls, Fail, Say
from nanobot.testing.protocol_rules import encrypted
from tests.fakes.login_people import address_after
from tests.fakes.oauth_server import EMAIL, FakeAuthority
from tests.support.home import Ended, Home, ended

NO_BROWSER = ("provider", "login", "openai-codex", "--no-browser", "--authority")
BROWSER = Path(__file__).with_name("browser_child.py")


class LoginHome(Home):
    """A home whose accounts are those of a fake authority."""

    def __init__(self, path: Path, authority: FakeAuthority) -> None:
        super().__init__(path)
        self.data.mkdir()
        self.authority = authority
        self.accounts = AccountStore.in_state(self.data / "state")

    def use(self, provider: str, **section: str) -> None:
        self.configure(agents={"defaults": {"provider": provider}}, providers={provider: section})

    def with_browser(self) -> None:
        self.environ["BROWSER"] = f'"{sys.executable}" "{BROWSER}" %s'

    def run_here(self, *words: str) -> Ended:
        """Run the command without a process of its own."""
        done = CliRunner().invoke(app, words, env=self.environ)
        return Ended(done.exit_code, done.stdout, done.stderr)

    def log_in(self, name: str) -> Ended:
        return self.run("provider", "login", name, "--authority", self.authority.url, stdin=b"")

    def account(self, name: str) -> Account:
        account = self.accounts.load(name)
        assert account is not None
        return account


@pytest.fixture
def server() -> Iterator[FakeAuthority]:
    with FakeAuthority() as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, server: FakeAuthority) -> LoginHome:
    return LoginHome(tmp_path, server)


def test_a_login_in_a_browser_then_turns_with_tools_that_go_on_with_what_was_thought(home, server):
    home.with_browser()
    home.use("openaiCodex", apiBase=server.codex)
    server.script(Calls(("list_dir", {"path": "."}), reasoning="Let me look."), Say("Some files."), Say("Two."))

    code, out, aside = home.log_in("openaiCodex")
    answers = [home.run("agent", "-m", text, "--session", "cli:a") for text in ("what is here?", "two")]

    assert (code, aside) == (0, "")
    assert f"Logged in to OpenAI Codex (ChatGPT account) as {EMAIL} (plus)." in out
    assert answers == [(0, "Some files.\n", ""), (0, "Two.\n", "")]
    first, second, third = server.chats
    thoughts = [item for item in second.json["input"] if item["type"] == "reasoning"]
    assert [thought["encrypted_content"] for thought in thoughts] == [encrypted("Let me look.")]
    assert third.body.startswith(first.body[:-2]) and encrypted("Let me look.") in third.body.decode()
    assert first.json["prompt_cache_key"] == third.json["prompt_cache_key"]
    assert server.problems == []
    assert not any(secret in out for secret in home.account("openai_codex").secrets)


@pytest.mark.parametrize("has_config", [True, False])
def test_a_login_by_a_code_and_then_an_answer_also_without_a_config(home, server, has_config):
    server.polls.extend(["pending"])
    if has_config:
        home.use("githubCopilot")
    server.script(Say("hello"))

    code, out, aside = home.log_in("github-copilot")
    answer = home.run("agent", "-m", "hi")

    assert (code, aside) == (0, "")
    assert "WDJB-MJHT" in out
    assert "as octocat" in out
    assert answer == (0, "hello\n", "")
    assert server.chats[0].path == "/copilot/chat/completions"


def test_without_a_browser_the_address_it_ended_at_is_pasted(home):
    login = home.start(*NO_BROWSER, home.authority.url, stdin=subprocess.PIPE)
    assert login.stdout is not None
    url = next(line.decode().strip() for line in login.stdout if b"/oauth/authorize" in line)

    pasted = f"http://localhost:1455/auth/callback?code=x&state=y\n{address_after(url)}\n"
    code, out, aside = ended(login, pasted.encode())

    assert (code, aside) == (0, "")
    assert "does not belong to this login" in out
    assert home.account("openai_codex").name == EMAIL


@pytest.mark.parametrize("name", ["openai-codex", "github-copilot"])
def test_somebody_who_says_no_is_not_logged_in(home, server, name):
    home.with_browser()
    server.consent = "no"
    server.polls.append("access_denied")

    code, _, aside = home.log_in(name)

    assert code == 1
    assert re.fullmatch(r"Error: The login was refused.*\n", aside)
    assert home.accounts.load(name.replace("-", "_")) is None


@pytest.mark.skipif(sys.platform == "win32", reason="signals are a POSIX thing")
def test_ctrl_c_leaves_quietly(home):
    login = home.start(*NO_BROWSER, home.authority.url, stdin=subprocess.PIPE)
    assert login.stdout is not None
    next(line for line in login.stdout if b"/oauth/authorize" in line)

    login.send_signal(signal.SIGINT)
    code, _, aside = ended(login)

    assert (code, aside) == (130, "")
    assert home.accounts.load("openai_codex") is None


def test_an_authority_that_is_not_there_is_said_in_a_line(home):
    code, _, aside = home.run("provider", "login", "github-copilot", "--authority", "http://127.0.0.1:9")

    assert code == 1
    assert len(aside.splitlines()) == 1
    assert "http://127.0.0.1:9" in aside
    assert "Check the network" in aside


def test_who_is_logged_in_stands_in_the_lists_without_a_token(home, server):
    home.accounts.save(server.openai_account())
    refused = server.github_account(refused="Bad credentials")
    home.accounts.save(refused)

    _, listed, _ = home.run_here("provider", "list")
    _, status, _ = home.run_here("status")
    rows = {row["name"]: row for row in json.loads(home.run_here("provider", "list", "--json")[1])}

    assert f"{EMAIL} (plus), token until 20" in listed
    assert "login ended: octocat; `nanobot provider login github-copilot`" in listed
    assert "Accounts\n  openai_codex" in status
    assert (rows["openai_codex"]["logged_in"], rows["openai_codex"]["backend"]) == (f"{EMAIL} (plus)", "direct")
    assert rows["github_copilot"]["login_ended"] is True
    secrets = [*home.account("openai_codex").secrets, *refused.secrets]
    assert not any(secret in listed + status for secret in secrets)


@pytest.mark.parametrize("expires_at", [1.8e15, math.nan])
def test_an_end_that_no_clock_knows_is_not_shown(home, server, expires_at):
    home.accounts.save(replace(server.openai_account(), expires_at=expires_at))

    code, listed, aside = home.run_here("provider", "list")

    assert (code, aside) == (0, "")
    assert f"{EMAIL} (plus)" in listed and "token until" not in listed


def test_a_logout_deletes_the_tokens_once(home, server):
    home.accounts.save(server.openai_account())

    first = home.run_here("provider", "logout", "OpenAI-Codex")
    second = home.run_here("provider", "logout", "openai_codex")

    assert first == (0, "Logged out of OpenAI Codex (ChatGPT account); its tokens are deleted from this machine.\n", "")
    assert second == (0, "Not logged in to OpenAI Codex (ChatGPT account).\n", "")
    assert not home.accounts.path("openai_codex").exists()


def test_nobody_logged_in_or_a_login_that_was_ended_elsewhere_is_said_with_what_to_run(home, server):
    home.use("openaiCodex", apiBase=server.codex)
    nobody = home.run("agent", "-m", "hi")
    home.accounts.save(server.openai_account())
    server.revoke()
    ended = home.run("agent", "-m", "hi")

    assert (nobody.code, ended.code) == (1, 1)
    assert "Run `nanobot provider login openai-codex`" in nobody.aside
    assert "nanobot provider login openai-codex" in ended.aside


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("openai-codex", "openaiCodex"),
        pytest.param("github-copilot", "githubCopilot", marks=pytest.mark.slow),
    ],
)
def test_a_token_is_in_its_own_file_and_nowhere_else_whatever_happens(home, server, name, key):
    def echo() -> str:
        account = home.account(name.replace("-", "_"))
        return f"no good: {account.access_token}, {account.grant}"

    home.with_browser()
    home.use(key, **({"apiBase": server.codex} if key == "openaiCodex" else {}))
    said = [home.log_in(name)]
    account = home.account(name.replace("-", "_"))
    look = Calls(("read_file", {"path": str(home.accounts.path(account.provider))}))
    server.script(look, Say("Some files."), Fail(400, f"no good: {account.access_token}"))

    said += [home.run("agent", "-m", text) for text in ("what is here?", "and there?")]
    server.end_tokens()
    server.token_answers.append((500, {"error": {"message": echo(), "code": "server_error"}}, {}))
    said += [home.run("agent", "-m", "trouble", "--json"), home.run("agent", "-m", "renewed", "--logs")]
    server.revoke()
    server.token_answers.append((401, {"error": {"message": echo(), "code": "refresh_token_reused"}}, {}))
    said.append(home.run("agent", "-m", "no longer"))
    said += [home.run_here("provider", "list", "--json"), home.run_here("status", "--json")]
    kept = {path for path in home.data.rglob("*") if path.is_file() and path.parent.name != "accounts"}
    words = [part.encode() for result in said for part in result[1:]] + [path.read_bytes() for path in kept]

    words += [request.body for request in server.chats]

    assert account.access_token in server.given and len(kept) > 5
    assert [text for secret in server.given for text in words if secret.encode() in text] == []
    if sys.platform != "win32":
        assert {path.stat().st_mode & 0o777 for path in (home.data / "state" / "accounts").iterdir()} == {0o600}


@pytest.mark.parametrize("command", ["login", "logout"])
@pytest.mark.parametrize(("name", "said"), [("gitlab", "'gitlab' has no login"), ("anthropic", "uses an API key")])
def test_what_one_cannot_log_in_to_is_refused_with_what_one_can(home, command, name, said):
    code, _, aside = home.run_here("provider", command, name)

    assert code == 2
    assert said in aside
    assert "openai-codex and github-copilot" in aside


@pytest.mark.parametrize(
    "address", ["http://login.example.org", "login.example.org", "https://", "file:///etc", "http://["]
)
def test_tokens_are_fetched_from_no_address_that_anybody_can_read(home, address):
    code, _, aside = home.run_here("provider", "login", "openai-codex", "--authority", address)

    assert code == 2
    assert "cannot be used" in aside
