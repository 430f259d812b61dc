"""Logins to ChatGPT and GitHub accounts, and their renewal, against an authority that checks everything.

As people run them: tests/cli/test_login.py.
"""

import asyncio
import json
import re
import time
from dataclasses import replace
from urllib.parse import parse_qs

import pytest

from nanobot.errors import StorageError
from nanobot.providers.accounts import github
from nanobot.providers.accounts.github import api_url
from nanobot.providers.accounts.openai import (
    ISSUER,
    UnexpectedCallbackError,
    code_in_pasted,
    log_in,
    redirect_ports,
    renew,
)
from nanobot.providers.accounts.store import AccountStore, LoginFailedError, LoginNeededError
from nanobot.providers.errors import (
    MalformedResponseError,
    ModelOverloadedError,
    RateLimitedError,
)
from tests.fakes.login_people import Person, address_after, get
from tests.fakes.oauth_server import ACCOUNT_ID, EMAIL, jwt
from tests.support.eventually import eventually

ANY_PORT = (0,)


async def test_an_answer_with_another_state_is_refused_and_the_true_one_still_waited_for(server, pools):
    server.consent = "stranger"
    person = Person()
    login = asyncio.create_task(log_in(server.url, pools, person, ports=ANY_PORT))
    await eventually(lambda: person.pages)
    assert not login.done()
    (question,) = server.asked("/oauth/authorize")
    found = re.search(r"localhost%3A(\d+)", person.shown[1])
    assert found is not None
    other_page = await asyncio.to_thread(get, f"http://127.0.0.1:{found[1]}/etc/passwd")

    server.consent = "yes"
    last_page = await asyncio.to_thread(get, person.shown[1])
    account = await login

    redeemed = parse_qs(server.asked("/oauth/token")[0].body.decode())
    assert (account.name, account.plan, account.account_id) == (EMAIL, "plus", ACCOUNT_ID)
    assert account.expires_at == pytest.approx(time.time() + 3600, abs=30)
    assert f"{server.url}{question.path}" in person.shown
    assert redeemed["code_verifier"][0] not in question.path
    assert "belongs to no login" in person.pages[0] and "nothing here" in other_page
    assert "go back to the terminal" in last_page


async def test_nobody_is_waited_for_without_end(server, pools):
    with pytest.raises(LoginFailedError, match="No login within 1 minutes"):
        await log_in(server.url, pools, Person(browses=False), ports=ANY_PORT, timeout_s=0.05)
    server.polls.extend(["pending"] * 1000)
    server.code_life_s = 0.05
    with pytest.raises(LoginFailedError, match="code expired"):
        await github.log_in(server.url, pools, Person(browses=False))


async def test_an_account_without_chatgpt_is_refused_with_the_way_out(server, pools):
    tokens = {"access_token": jwt({"exp": 1}), "refresh_token": "rt", "id_token": jwt({"email": EMAIL})}
    server.token_answers.append((200, tokens, {}))

    with pytest.raises(LoginFailedError, match="Log in with another one"):
        await log_in(server.url, pools, Person(), ports=ANY_PORT)


async def test_where_no_port_is_free_the_address_can_be_pasted(server, pools):
    class Elsewhere(Person):
        def open(self, url: str) -> None:
            self._pastes.append("https://chatgpt.com/?code=a&state=b")  # something else, by mistake
            self._pastes.append(address_after(url))

    busy = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = busy.sockets[0].getsockname()[1]
    person = Elsewhere()

    account = await log_in(server.url, pools, person, ports=(port,))

    busy.close()
    assert account.name == EMAIL
    assert any("does not belong to this login" in line for line in person.shown)


@pytest.mark.parametrize(
    "pasted",
    ["http://localhost:1455/auth/callback?code=abc&state=st", "?state=st&code=abc", "code=abc&state=st", "  abc \n"],
)
def test_a_code_is_found_in_whatever_is_pasted(pasted):
    assert code_in_pasted(pasted, "st") == "abc"


@pytest.mark.parametrize(
    "pasted",
    [
        "https://chatgpt.com/",
        "http://localhost:1455/auth/callback",
        "http://[x?a=1",
        "=",
        "state=st",
        "what is that",
        "\ufffd",
    ],
)
def test_what_holds_no_code_is_never_taken_for_one(pasted):
    with pytest.raises(UnexpectedCallbackError):
        code_in_pasted(pasted, "st")


async def test_openai_itself_is_asked_for_its_registered_ports_only():
    assert redirect_ports(ISSUER) == (1455, 1457)
    assert redirect_ports("https://login.example.org") == (1455, 1457, 0)


async def test_a_renewal_without_a_new_refresh_token_keeps_the_old_one(server, pools):
    before = server.openai_account()
    server.token_answers.append((200, {"access_token": jwt({"exp": 2_000_000_000})}, {}))

    after = await renew(before, pools)

    assert (after.grant, after.expires_at) == (before.grant, 2_000_000_000)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"error": "invalid_grant", "error_description": "ended"}, LoginNeededError),
        (401, {"error": {"code": "refresh_token_expired", "message": "ended"}}, LoginNeededError),
        (403, "<html>Just a moment...</html>", LoginNeededError),
        (400, "<html>a proxy</html>", MalformedResponseError),
        (200, "<html>a portal</html>", MalformedResponseError),
        (500, {"error": "server_error"}, ModelOverloadedError),
        (429, {"error": "slow"}, RateLimitedError),
    ],
)
async def test_a_renewal_that_fails_says_how_and_tells_no_token(server, pools, status, body, kind):
    account = server.openai_account()
    if isinstance(body, dict):
        body = json.loads(json.dumps(body).replace("ended", f"ended for {account.grant}"))
    server.token_answers.append((status, body, {"Retry-After": "7"}))

    with pytest.raises(kind) as failed:
        await renew(account, pools)

    assert not any(secret in str(failed.value) + repr(failed.value) for secret in account.secrets)
    assert kind is not RateLimitedError or failed.value.retry_after_s == 7
    assert "apiBase" not in str(failed.value)


# GitHub.


async def test_slow_down_and_a_server_that_is_away_for_a_moment_make_the_pauses_longer(server, pools):
    server.polls.extend(["pending", "slow_down", "pending", "unavailable"])
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(min(seconds, 0.1))

    account = await github.log_in(server.url, pools, Person(browses=False), sleep)

    assert waits == pytest.approx([0.01, 0.01, 0.03, 0.03, 5.03])
    assert (account.name, account.plan, account.api_base) == ("octocat", "free_limited_copilot", server.copilot)
    assert account.expires_at == pytest.approx(time.time() + 3600, abs=30)


@pytest.mark.parametrize(("said", "why"), [("expired_token", "code expired"), ("unheard_of", "unheard_of")])
async def test_a_code_that_will_not_be_typed_ends_the_login(server, pools, said, why):
    server.polls.extend(["pending", said])

    with pytest.raises(LoginFailedError, match=f"{why}.*Run the command again") as failed:
        await github.log_in(server.url, pools, Person(browses=False))

    (device_code, *_) = parse_qs(server.asked("/login/oauth/access_token")[0].body.decode())["device_code"]
    assert device_code not in str(failed.value)


async def test_an_account_without_copilot_is_told_so_in_github_s_words(server, pools):
    server.no_copilot = "You do not have access to Copilot"

    with pytest.raises(LoginFailedError, match="has no Copilot here: You do not have access"):
        await github.log_in(server.url, pools, Person(browses=False))


async def test_a_renewal_of_copilot_s_token_is_typed_and_tells_no_token(server, pools):
    account = replace(server.github_account(), api_base="https://old.example")
    server.token_answers += [(200, {"token": "t", "expires_at": 2_000_000_000}, {}), (200, "<html>a portal</html>", {})]

    renewed = await github.renew(account, pools)
    with pytest.raises(MalformedResponseError):
        await github.renew(account, pools)
    server.revoke()
    with pytest.raises(LoginNeededError, match="nanobot provider login github-copilot") as refused:
        await github.renew(account, pools)

    assert (renewed.expires_at, renewed.api_base) == (2_000_000_000, "")
    assert account.grant not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "api"),
    [
        ("https://github.com", "https://api.github.com"),
        ("https://firm.ghe.com", "https://api.firm.ghe.com"),
        ("https://git.firm.example", "https://git.firm.example/api/v3"),
    ],
)
def test_where_the_api_of_a_github_is(host, api):
    assert api_url(host) == api


@pytest.mark.parametrize("text", ["", "{", "[]", '{"grant": 1}', '{"grant": "g"}', "\x00", "[" * 5000])
def test_a_damaged_file_is_reported_with_the_way_out_and_kept(tmp_path, text):
    store = AccountStore.in_state(tmp_path / "state")
    store.path("openai_codex").parent.mkdir(parents=True)
    store.path("openai_codex").write_text(text)

    with pytest.raises(StorageError, match="nanobot provider login openai-codex"):
        store.load("openai_codex")

    assert list(store.all()) == []
    assert store.path("openai_codex").read_text() == text
