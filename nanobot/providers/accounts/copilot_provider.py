"""GitHub Copilot models through a GitHub account: chat completions, at the address that comes with the token.

Copilot has no public reference; the sources are listed in `accounts.github`. Besides the editor headers it wants to
know whether the user or the agent speaks (`X-Initiator`: an agent's steps do not count as user requests) and whether
there are images (`Copilot-Vision-Request`). Some models only answer at `/responses` and say so: "not accessible via the
/chat/completions endpoint". That is learned once and stored.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from nanobot.messages.types import ChatMessage, ToolSchema, is_synthetic
from nanobot.providers.accounts import github
from nanobot.providers.accounts.provider import AccountProvider
from nanobot.providers.accounts.store import Account, AccountStore
from nanobot.providers.errors import ModelCallError
from nanobot.providers.limits import Timeouts
from nanobot.providers.wire import chat as completions
from nanobot.providers.wire import responses
from nanobot.providers.wire.rows import has_images
from nanobot.providers.wire.stream import Endpoint, EndpointSettings, WireCall
from nanobot.utils.clock import Clock

API = "https://api.githubcopilot.com"
NEEDS_RESPONSES = "responses"
"""What is stored for a model that only speaks the Responses wire."""


class CopilotProvider(AccountProvider):
    """Copilot. `api_base` overrides the address that comes with the token."""

    expired_statuses = frozenset({401, 403})

    def __init__(
        self,
        store: AccountStore,
        default_model: str = "gpt-4.1",
        *,
        api_base: str | None = None,
        clock: Clock | None = None,
        **settings: Unpack[EndpointSettings],
    ) -> None:
        defaults = Endpoint(
            github.PROVIDER, API, config_key="providers.githubCopilot.apiBase", timeouts=Timeouts.standard()
        )
        super().__init__(defaults.with_settings(api_base, settings), default_model, store, github.renew, clock)
        self._has_custom_base = bool(api_base)

    def create_call(
        self,
        account: Account,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema],
        model: str,
        max_tokens: int,
        temperature: float,
    ) -> WireCall:
        headers = {
            **github.EDITOR_HEADERS,
            "Openai-Intent": "conversation-edits",
            "X-Initiator": "user" if _is_user_request(messages) else "agent",
            **({"Copilot-Vision-Request": "true"} if has_images(messages) else {}),
        }
        endpoint = replace(
            self._endpoint,
            api_base=self._base_of(account),
            api_key=account.access_token,
            extra_headers={**headers, **self._endpoint.extra_headers},
        )
        if NEEDS_RESPONSES in endpoint.capabilities.get(endpoint.api_base, model).needs:
            return responses.ResponsesCall(endpoint, messages, tools, model, on_fixup=self._on_fixup)
        return completions.ChatCall(endpoint, messages, tools, model, max_tokens, temperature, self._on_fixup)

    def learn(self, error: ModelCallError, account: Account, model: str) -> bool:
        """Learn that a model only answers on the Responses wire."""
        if error.status != 400 or "/chat/completions" not in error.detail:
            return False
        return self._endpoint.capabilities.learn(self._base_of(account), model, need=NEEDS_RESPONSES)

    def _base_of(self, account: Account) -> str:
        return self._endpoint.api_base if self._has_custom_base else account.api_base or self._endpoint.api_base


def _is_user_request(messages: Sequence[ChatMessage]) -> bool:
    return bool(messages) and messages[-1]["role"] == "user" and not is_synthetic(messages[-1])
