"""Models by a GitHub account with Copilot, over the wire."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nanobot.messages.types import ChatMessage
from nanobot.providers.accounts.github import CopilotProvider
from nanobot.providers.accounts.store import LoginNeededError
from nanobot.providers.base import LLMResponse
from nanobot.providers.endpoint import CapabilityStore
from nanobot.testing.model_server import Calls, Fail, Say
from nanobot.testing.protocol_rules import encrypted
from tests.fakes.oauth_server import FakeAuthority
from tests.support.sample_requests import HELLO, TOOLS


class Copilot:
    """The provider, logged in, and the server that plays GitHub."""

    def __init__(self, server: FakeAuthority, **settings: Any) -> None:
        self.server = server
        self.account = server.github_account()
        server.accounts.save(self.account)
        self.provider = CopilotProvider(server.accounts, "gpt-4.1", **settings)

    async def ask(self, rows: list[ChatMessage] | None = None, *steps: Any) -> LLMResponse:
        self.server.script(*steps)
        return await self.provider.chat(rows or HELLO, TOOLS)

    @property
    def headers(self) -> dict[str, str]:
        """Of the last request."""
        return self.server.chats[-1].headers


@pytest.fixture
async def copilot() -> AsyncIterator[Copilot]:
    with FakeAuthority() as server:
        copilot = Copilot(server)
        yield copilot
        await copilot.provider.close()


async def test_a_token_is_got_once_serves_many_calls_and_the_next_process_and_says_where_they_go(copilot):
    await asyncio.gather(*(copilot.ask() for _ in range(8)))
    again = CopilotProvider(copilot.server.accounts, "gpt-4.1")
    await again.chat(HELLO)
    await again.close()

    kept = copilot.server.accounts.load("github_copilot")
    assert copilot.server.renewals == 1
    assert {request.path for request in copilot.server.chats} == {"/copilot/chat/completions"}
    assert copilot.headers["authorization"] == f"Bearer {kept.access_token}"
    assert copilot.headers["editor-version"].startswith("vscode/")


async def test_the_agent_s_own_steps_are_not_a_person_s_requests_and_pictures_are_announced(copilot, tmp_path):
    (tmp_path / "dot.png").write_bytes(b"png")
    look: list[ChatMessage] = [{"role": "user", "content": "look", "media": [str(tmp_path / "dot.png")]}]
    response = await copilot.ask(look, Calls(("list_dir", {"path": "."}), ids=["c"]))
    assert (copilot.headers["x-initiator"], copilot.headers["copilot-vision-request"]) == ("user", "true")

    calls: ChatMessage = {"role": "assistant", "content": None, "tool_calls": [response.tool_calls[0].to_message()]}
    results: list[ChatMessage] = [*HELLO, calls, {"role": "tool", "tool_call_id": "c", "content": "a"}]
    for rows in (results, [*results, {"role": "user", "content": "Go on.", "origin": "system"}]):
        await copilot.ask(rows, Say("a"))
        assert copilot.headers["x-initiator"] == "agent"


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_token_is_renewed_once_and_the_call_goes_on(copilot, status):
    await copilot.ask()
    copilot.server.script(Fail(status, "token expired or invalid"))

    assert (await copilot.ask(None, Say("again"))).content == "again"
    assert copilot.server.renewals == 2


async def test_what_the_account_may_not_use_is_said_as_that(copilot):
    refusal = Fail(403, "This endpoint is not part of your plan")

    with pytest.raises(LoginNeededError, match=r"not part of your plan\. Check what this account may use"):
        await copilot.ask(None, refusal, refusal)


async def test_the_config_s_address_goes_before_the_token_s(tmp_path):
    with FakeAuthority() as server:
        copilot = Copilot(server, api_base=f"{server.url}/copilot/mine")

        await copilot.ask()

        await copilot.provider.close()
        assert server.chats[0].path == "/copilot/mine/chat/completions"


async def test_a_model_that_answers_elsewhere_is_asked_there_and_that_is_remembered(tmp_path):
    with FakeAuthority() as server:
        server.responses_only = {"gpt-5-codex"}
        copilot = Copilot(server, capabilities=CapabilityStore(tmp_path / "capabilities.json"))
        copilot.server.script(Say("one", reasoning="hm"), Say("two"))

        first = await copilot.provider.chat(HELLO, TOOLS, "gpt-5-codex")
        second = await copilot.provider.chat(HELLO, TOOLS, "gpt-5-codex")
        await copilot.provider.close()

        assert (first.content, second.content) == ("one", "two")
        assert first.thinking_blocks is not None
        assert first.thinking_blocks[0]["encrypted_content"] == encrypted("hm")
        assert [request.path.rpartition("/")[2] for request in server.chats] == [
            "completions",
            "responses",
            "responses",
        ]
