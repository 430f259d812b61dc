"""The promises of the provider port (`nanobot.testing.providers`), held by each provider in PROVIDERS."""

from collections.abc import Callable

import pytest

from nanobot.messages.types import ChatMessage
from nanobot.providers.accounts.github import CopilotProvider
from nanobot.providers.accounts.openai import OpenAICodexProvider
from nanobot.providers.base import Finished, LLMProvider, LLMResponse
from nanobot.providers.custom_provider import CustomProvider
from nanobot.providers.litellm_provider import LiteLLMProvider
from nanobot.providers.offline_provider import OfflineProvider
from nanobot.providers.resilience import ChosenProvider, ResilientProvider
from nanobot.testing import Check
from nanobot.testing.model_server import FakeModels
from nanobot.testing.providers import LIST_DIR, check_stream, provider_checks
from tests.fakes.oauth_server import FakeAuthority

Make = Callable[[FakeAuthority], LLMProvider]


def codex(server: FakeAuthority) -> LLMProvider:
    server.accounts.save(server.openai_account())
    return OpenAICodexProvider(server.accounts, "m", api_base=server.codex)


def copilot(server: FakeAuthority) -> LLMProvider:
    server.accounts.save(server.github_account())
    return CopilotProvider(server.accounts, "m", api_base=server.copilot)


def chained(server: FakeModels) -> LLMProvider:
    """A provider as a session has it, with another behind it."""
    direct = [CustomProvider("k", server.v1, model) for model in "mn"]
    models = [ChosenProvider(provider, name, name) for provider, name in zip(direct, "mn", strict=True)]
    return ResilientProvider(models, retries=0)


def responses(server: FakeModels) -> LLMProvider:
    return CustomProvider("k", server.v1, "m", api_type="responses")


PROVIDERS: dict[str, tuple[Make, bool]] = {
    "direct": (lambda server: CustomProvider("k", server.v1, "m"), False),
    "direct, server does not stream": (lambda server: CustomProvider("k", server.v1, "m"), True),
    "responses": (responses, False),
    "responses, server does not stream": (responses, True),
    "codex": (codex, False),
    "codex, server does not stream": (codex, True),
    "copilot": (copilot, False),
    "litellm, openai": (lambda server: LiteLLMProvider("k", server.v1, "m", litellm_prefix="openai"), False),
    "litellm, anthropic": (
        lambda server: LiteLLMProvider("k", server.url, "claude-x", litellm_prefix="anthropic"),
        False,
    ),
    "chained": (chained, False),
}

LITELLM = [pytest.mark.xdist_group("litellm"), pytest.mark.timeout(180)]  # a busy machine takes long to import it
CHECKS = [
    pytest.param(check, id=f"{name}-{check}", marks=LITELLM if name.startswith("litellm") else [])
    for name, (make, is_plain) in PROVIDERS.items()
    for check in provider_checks(make, FakeAuthority, streams=not is_plain)
]


@pytest.mark.parametrize("check", CHECKS)
async def test_a_provider_holds(check: Check, tmp_path):
    await check.run(tmp_path)


@pytest.mark.parametrize("text", ["hello", "list files", "write a to b.txt"])
async def test_the_stand_in_keeps_the_promises_too(text):
    rows: list[ChatMessage] = [{"role": "user", "content": text}]

    deltas = [delta async for delta in OfflineProvider().chat_stream(rows, [LIST_DIR])]

    check_stream(deltas)


async def test_a_provider_of_somebody_s_own_is_asked_in_plain_chat_completions():
    class Theirs(LLMProvider):
        async def chat(self, messages, tools=None, model=None, max_tokens=4096, temperature=0.7):
            self.asked = messages
            return LLMResponse("hi")

    theirs = Theirs()
    row: ChatMessage = {"role": "user", "content": "hello", "runtime_context": "[now]", "turn_id": "t", "origin": "cli"}

    deltas = [delta async for delta in theirs.chat_stream([row])]

    assert theirs.asked == [{"role": "user", "content": "hello\n\n[now]"}]
    assert isinstance(deltas[-1], Finished)
