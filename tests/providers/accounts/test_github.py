"""Logging in to GitHub by a code, and the short tokens of Copilot."""

import asyncio
import time
from dataclasses import replace

import pytest

from nanobot.providers.accounts.github import GitHubAuthority, log_in, renew
from nanobot.providers.accounts.store import LoginFailedError, LoginNeededError
from nanobot.providers.errors import MalformedResponseError
from tests.fakes.login_people import Person


class Sleeps:
    """Waits in no time, and remembers how long it should have been."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(min(seconds, 0.1))


async def test_a_code_is_shown_and_asked_for_until_somebody_typed_it(server, pools):
    server.polls.extend(["pending", "pending"])
    person = Person(browses=False)

    account = await log_in(GitHubAuthority.at(server.url), pools, person)

    assert person.shown[:2] == [f"Open {server.url}/login/device and type this code:", "WDJB-MJHT"]
    assert (account.name, account.plan, account.api_base) == ("octocat", "free_limited_copilot", server.copilot)
    assert account.expires_at == pytest.approx(time.time() + 3600, abs=30)
    assert len(server.asked("/login/oauth/access_token")) == 3


async def test_slow_down_makes_the_pauses_longer(server, pools):
    server.polls.extend(["pending", "slow_down", "pending"])
    sleeps = Sleeps()

    await log_in(GitHubAuthority.at(server.url), pools, Person(browses=False), sleeps)

    assert sleeps.seconds == pytest.approx([0.01, 0.01, 0.03, 0.03])


@pytest.mark.parametrize(
    ("said", "why"),
    [("access_denied", "refused on the page"), ("expired_token", "code expired"), ("unheard_of", "unheard_of")],
)
async def test_a_code_that_will_not_be_typed_ends_the_login(server, pools, said, why):
    server.polls.extend(["pending", said])

    with pytest.raises(LoginFailedError, match=f"{why}.*Run the command again"):
        await log_in(GitHubAuthority.at(server.url), pools, Person(browses=False))


async def test_a_code_that_nobody_types_expires_here_too(server, pools):
    server.polls.extend(["pending"] * 1000)
    server.code_life_s = 0.05

    with pytest.raises(LoginFailedError, match="code expired"):
        await log_in(GitHubAuthority.at(server.url), pools, Person(browses=False))


async def test_an_account_without_copilot_is_told_so_in_github_s_words(server, pools):
    server.no_copilot = "You do not have access to Copilot"

    with pytest.raises(LoginFailedError, match="has no Copilot here: You do not have access"):
        await log_in(GitHubAuthority.at(server.url), pools, Person(browses=False))


async def test_a_token_for_copilot_comes_with_its_address(server, pools):
    account = await renew(server.github_account(), pools)

    assert account.access_token
    assert account.api_base == server.copilot


async def test_a_revoked_login_is_refused_without_the_token(server, pools):
    account = server.github_account()
    server.revoke()

    with pytest.raises(LoginNeededError, match="nanobot provider login github-copilot") as refused:
        await renew(account, pools)

    assert account.grant not in str(refused.value)


async def test_a_page_instead_of_a_token_is_no_token(server, pools):
    server.token_answers.append((200, "<html>a portal</html>", {}))

    with pytest.raises(MalformedResponseError):
        await renew(server.github_account(), pools)


async def test_without_refresh_in_the_end_is_taken_as_it_is_said(server, pools):
    server.token_answers.append((200, {"token": "t", "expires_at": 2_000_000_000}, {}))

    account = await renew(replace(server.github_account(), api_base="https://old.example"), pools)

    assert (account.expires_at, account.api_base) == (2_000_000_000, "")


@pytest.mark.parametrize(
    ("host", "api"),
    [
        ("", "https://api.github.com"),
        ("https://github.com/", "https://api.github.com"),
        ("https://firm.ghe.com", "https://api.firm.ghe.com"),
        ("https://git.firm.example", "https://git.firm.example/api/v3"),
    ],
)
def test_where_the_api_of_a_github_is(host, api):
    assert GitHubAuthority.at(host).api == api
