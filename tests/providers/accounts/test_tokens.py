"""A token that is good now: renewed in time, once for all who ask, whoever they are."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial

import pytest

from nanobot.errors import StorageError
from nanobot.net.pools import HttpPools
from nanobot.providers.accounts.openai import renew
from nanobot.providers.accounts.provider import AccountTokens
from nanobot.providers.accounts.store import LoginNeededError
from nanobot.providers.errors import ModelOverloadedError
from nanobot.utils.clock import FrozenClock
from tests.fakes.oauth_server import FakeAuthority
from tests.support.eventually import eventually
from tests.support.home import start_program


class Client:
    """An account on disk, and tokens of it."""

    def __init__(self, server: FakeAuthority, pools: HttpPools) -> None:
        self.server = server
        self.clock = FrozenClock(datetime.now().astimezone())
        self.first = server.openai_account()
        server.accounts.save(self.first)
        self.tokens = AccountTokens("openai_codex", server.accounts, partial(renew, pools=pools), self.clock)

    @property
    def kept(self):
        return self.server.accounts.load("openai_codex")


@pytest.fixture
async def client(server: FakeAuthority, pools: HttpPools) -> AsyncIterator[Client]:
    client = Client(server, pools)
    yield client
    await client.tokens.close()


async def test_a_token_is_used_until_shortly_before_it_ends_and_then_renewed_and_kept(client, server):
    assert await client.tokens.current() == client.first
    assert server.requests == []
    client.clock.advance(3600 - 60)

    account = await client.tokens.current()
    again = await client.tokens.replace_token(account)

    assert server.renewals == 2
    assert len({each.grant for each in (client.first, account, again)}) == 3, "a refresh token is good once"
    assert client.kept == again
    server.accounts.delete("openai_codex")
    with pytest.raises(LoginNeededError, match="not logged in"):
        await client.tokens.current()


@pytest.mark.parametrize("others", [0, 1])
async def test_a_cancelled_call_takes_the_renewal_from_nobody(client, server, others):
    server.token_delay_s = 0.05
    client.clock.advance(3600)
    hasty, *patient = [asyncio.create_task(client.tokens.current()) for _ in range(1 + others)]
    await eventually(lambda: server.requests)

    hasty.cancel()
    accounts = await asyncio.gather(*patient)
    await client.tokens.close()

    assert client.kept.grant != client.first.grant
    assert accounts == [client.kept] * others
    assert server.renewals == 1


async def test_many_calls_at_once_share_one_renewal(client, server):
    server.token_delay_s = 0.05
    client.clock.advance(3600)

    accounts = await asyncio.gather(*(client.tokens.current() for _ in range(20)))

    assert len(server.asked("/oauth/token")) == 1
    assert len({account.access_token for account in accounts}) == 1


async def test_who_was_refused_with_an_old_token_gets_the_new_one_without_a_renewal(client, server):
    await client.tokens.replace_token(client.first)

    account = await client.tokens.replace_token(client.first)

    assert account == client.kept
    assert server.renewals == 1


async def test_a_refused_login_says_what_to_run_and_is_not_asked_for_again(client, server):
    server.revoke()
    client.clock.advance(3600)

    for _ in range(3):
        with pytest.raises(LoginNeededError, match="Run `nanobot provider login openai-codex`"):
            await client.tokens.current()

    assert len(server.asked("/oauth/token")) == 1
    assert client.kept.refused == "Your refresh token was revoked."


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((503, {"error": "temporarily_unavailable"}, {}), ModelOverloadedError),
        ((403, "<html>Just a moment...</html>", {}), LoginNeededError),
    ],
)
async def test_trouble_at_the_authority_is_no_refusal_and_the_next_call_tries_again(client, server, answer, kind):
    client.clock.advance(3600)
    server.token_answers.append(answer)

    with pytest.raises(kind):
        await client.tokens.current()

    assert (await client.tokens.current()).access_token != client.first.access_token


async def test_what_cannot_be_kept_is_used_by_this_process(client, server, monkeypatch):
    def full(_account: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(server.accounts, "save", full)
    client.clock.advance(3600)

    account = await client.tokens.current()

    assert account.access_token != client.first.access_token
    assert await client.tokens.replace_token(client.first) == account


async def test_who_waited_for_the_lock_finds_the_new_token_in_the_file(client, server, pools):
    server.token_delay_s = 0.05
    client.clock.advance(3600)
    beside = AccountTokens("openai_codex", server.accounts, partial(renew, pools=pools), client.clock)

    first, second = await asyncio.gather(client.tokens.current(), beside.current())

    assert first == second == client.kept
    assert server.renewals == 1


async def in_two_processes(server: FakeAuthority, times: int) -> list[str]:
    """The token that each of two processes has in the end; both ask so many times, from the same moment on."""
    folder = str(server.accounts.path("openai_codex").parent)
    words = ["tests.providers.accounts.renewing_child", folder, str(times)]
    children = [start_program(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    return [
        out.strip()
        for out, _ in await asyncio.gather(*(asyncio.to_thread(child.communicate, "\n", 30) for child in children))
    ]


async def test_two_processes_that_renew_again_and_again_never_use_a_refresh_token_twice(server):
    server.token_life_s = 60  # less than the margin: each call renews
    server.accounts.save(server.openai_account())

    tokens = await in_two_processes(server, 6)

    asked = [request.body for request in server.asked("/oauth/token")]
    assert all(tokens)
    assert len(asked) == len(set(asked)) == server.renewals >= 6
    assert not server.accounts.load("openai_codex").refused
