"""Logging in to a ChatGPT account, in a browser or by pasting, against an authority that checks everything."""

import asyncio
import json
import re
import time
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest

from nanobot.providers.accounts.oauth import UnexpectedCallbackError, code_in_pasted
from nanobot.providers.accounts.openai import OpenAIAuthority, Pkce, exchange_code, log_in, renew
from nanobot.providers.accounts.store import LoginFailedError, LoginNeededError
from nanobot.providers.errors import (
    ConnectionFailedError,
    MalformedResponseError,
    ModelOverloadedError,
    RateLimitedError,
)
from tests.fakes.login_people import Person, address_after, get
from tests.fakes.oauth_server import ACCOUNT_ID, EMAIL, jwt
from tests.support.eventually import eventually

ANY_PORT = (0,)


def authority_of(server, **changes):
    return replace(OpenAIAuthority.at(server.url), ports=ANY_PORT, **changes)


async def code_of(server, authority, pkce, redirect_uri):
    url = authority.authorization_url(redirect_uri, pkce, "a-state-of-sixteen")
    address = await asyncio.to_thread(address_after, url)
    return parse_qs(urlsplit(address).query)["code"][0]


async def test_a_browser_logs_in_and_gets_a_page(server, pools):
    person = Person()

    account = await log_in(authority_of(server), pools, person)
    await eventually(lambda: person.pages)

    assert (account.name, account.plan, account.account_id) == (EMAIL, "plus", ACCOUNT_ID)
    assert account.authority == server.url
    assert account.expires_at == pytest.approx(time.time() + 3600, abs=30)
    assert "go back to the terminal" in person.pages[0]
    assert server.problems == []


async def test_the_address_is_shown_whole_and_the_secret_stays_here(server, pools):
    person = Person()

    await log_in(authority_of(server), pools, person)

    (question,) = server.asked("/oauth/authorize")
    redeemed = parse_qs(server.asked("/oauth/token")[0].body.decode())
    assert f"{server.url}{question.path}" in person.shown
    assert redeemed["code_verifier"][0] not in question.path


async def test_a_wrong_verifier_and_a_used_code_are_refused(server, pools):
    authority, pkce, redirect_uri = authority_of(server), Pkce.new(), "http://localhost:9/auth/callback"
    first = await code_of(server, authority, pkce, redirect_uri)
    second = await code_of(server, authority, pkce, redirect_uri)

    with pytest.raises(LoginFailedError, match="verifier does not fit"):
        await exchange_code(authority, pools, first, Pkce.new(), redirect_uri)
    await exchange_code(authority, pools, second, pkce, redirect_uri)
    with pytest.raises(LoginFailedError, match="unknown or was used") as refused:
        await exchange_code(authority, pools, second, pkce, redirect_uri)

    assert second not in str(refused.value)


async def test_an_answer_with_another_state_is_refused_and_the_true_one_still_waited_for(server, pools):
    server.consent = "stranger"
    person = Person()
    login = asyncio.create_task(log_in(authority_of(server), pools, person))
    await eventually(lambda: person.pages)
    assert not login.done()

    server.consent = "yes"
    await asyncio.to_thread(get, person.shown[1])

    assert (await login).name == EMAIL
    assert "belongs to no login" in person.pages[0]


async def test_a_person_who_says_no_ends_the_login_at_once(server, pools):
    server.consent = "no"
    person = Person()

    with pytest.raises(LoginFailedError, match="The user said no"):
        await log_in(authority_of(server), pools, person)


async def test_where_no_port_is_free_the_address_can_be_pasted(server, pools):
    class Elsewhere(Person):
        def open(self, url: str) -> None:
            self._pastes.append("https://chatgpt.com/?code=a&state=b")  # something else, by mistake
            self._pastes.append(address_after(url))

    busy = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = busy.sockets[0].getsockname()[1]
    person = Elsewhere()

    account = await log_in(replace(authority_of(server), ports=(port,)), pools, person)

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


async def test_nobody_is_waited_for_without_end(server, pools):
    with pytest.raises(LoginFailedError, match="No login within 1 minutes"):
        await log_in(authority_of(server, timeout_s=0.05), pools, Person(browses=False))


async def test_a_login_may_be_cancelled(server, pools):
    login = asyncio.create_task(log_in(authority_of(server), pools, Person(browses=False)))
    await asyncio.sleep(0.05)

    login.cancel()
    with pytest.raises(asyncio.CancelledError):
        await login

    assert len(asyncio.all_tasks()) == 1


async def test_a_page_that_is_not_the_callback_is_not_there(server, pools):
    person = Person(browses=False)
    login = asyncio.create_task(log_in(authority_of(server), pools, person))
    await eventually(lambda: person.shown)
    found = re.search(r"localhost%3A(\d+)", person.shown[1])
    assert found is not None

    page = await asyncio.to_thread(get, f"http://127.0.0.1:{found[1]}/etc/passwd")

    assert "nothing here" in page
    login.cancel()


async def test_openai_itself_is_asked_for_its_registered_ports_only():
    assert OpenAIAuthority.at("").ports == (1455, 1457)
    assert OpenAIAuthority.at("https://auth.openai.com/").ports == (1455, 1457)
    assert OpenAIAuthority.at("https://login.example.org").ports == (1455, 1457, 0)


async def test_an_account_without_chatgpt_is_refused_with_the_way_out(server, pools):
    authority, pkce, redirect_uri = authority_of(server), Pkce.new(), "http://localhost:9/auth/callback"
    tokens = {"access_token": jwt({"exp": 1}), "refresh_token": "rt", "id_token": jwt({"email": EMAIL})}
    server.token_answers.append((200, tokens, {}))

    with pytest.raises(LoginFailedError, match="Log in with another one"):
        await exchange_code(authority, pools, "code", pkce, redirect_uri)


async def test_a_renewal_brings_a_new_token_and_a_new_refresh_token(server, pools):
    before = server.openai_account()

    after = await renew(before, pools)

    assert after.access_token != before.access_token
    assert after.grant != before.grant
    assert (after.name, after.account_id) == (before.name, before.account_id)


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


async def test_an_authority_that_is_not_there_is_a_failed_connection(server, pools):
    account = replace(server.openai_account(), authority="http://127.0.0.1:9")

    with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1:9"):
        await renew(account, pools)


def test_no_token_shows_in_an_account_that_is_printed(server):
    account = server.openai_account()

    assert not any(secret in repr(account) for secret in account.secrets)
