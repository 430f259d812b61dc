"""Models of GitHub Copilot by a GitHub account: chat completions, at the address that came with the token.

Copilot has no public reference; the source of each fact stands in `oauth/github`. Beside the editor's headers it wants
to know whether a person or the agent speaks (`X-Initiator`: the steps of an agent are not counted as a person's
requests) and whether there are pictures (`Copilot-Vision-Request`). Some of its models answer at `/responses` alone,
and say so: "not accessible via the /chat/completions endpoint". That is learned once and remembered.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from nanobot.messages.types import ChatMessage, ToolSchema, is_our_word
from nanobot.providers import completions, responses
from nanobot.providers.account_provider import AccountProvider
from nanobot.providers.errors import ModelCallError
from nanobot.providers.exchange import Call, Endpoint, EndpointSettings
from nanobot.providers.input_items import SealedThoughts, tool_of
from nanobot.providers.limits import Timeouts
from nanobot.providers.oauth import github
from nanobot.providers.oauth.accounts import Account, AccountStore
from nanobot.providers.wire import ToolsEncoder, has_images
from nanobot.utils.clock import Clock

API = "https://api.githubcopilot.com"
RESPONSES = "responses"
"""What is remembered of a model that speaks that wire alone."""


class CopilotProvider(AccountProvider):
    """Copilot. `api_base` overrides the address that comes with the token."""

    stale = frozenset({401, 403})

    def __init__(
        self,
        store: AccountStore,
        default_model: str = "gpt-4.1",
        *,
        api_base: str | None = None,
        clock: Clock | None = None,
        **settings: Unpack[EndpointSettings],
    ) -> None:
        usual = Endpoint(github.PROVIDER, API, config_key="providers.githubCopilot.apiBase", timeouts=Timeouts.usual())
        super().__init__(usual.with_settings(api_base, settings), default_model, store, github.renew, clock)
        self._own_base = bool(api_base)
        self._flat_tools = ToolsEncoder(tool_of)
        self._sealed = SealedThoughts()

    def call_for(
        self,
        account: Account,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema],
        model: str,
        max_tokens: int,
        temperature: float,
    ) -> Call:
        """One call as this account."""
        headers = {
            **github.EDITOR_HEADERS,
            "Openai-Intent": "conversation-edits",
            "X-Initiator": "user" if _asked_by_a_person(messages) else "agent",
            **({"Copilot-Vision-Request": "true"} if has_images(messages) else {}),
        }
        endpoint = replace(
            self._endpoint,
            api_base=self._base_of(account),
            api_key=account.access_token,
            extra_headers={**headers, **self._endpoint.extra_headers},
        )
        if RESPONSES in endpoint.capabilities.get(endpoint.api_base, model).needs:
            return responses.Call(
                replace(endpoint, tools=self._flat_tools), messages, tools, model, self._sealed, self._mended
            )
        return completions.Call(endpoint, messages, tools, model, max_tokens, temperature, self._mended)

    def learn(self, error: ModelCallError, account: Account, model: str) -> bool:
        """A model that says it answers elsewhere is asked there."""
        if error.status != 400 or "/chat/completions" not in error.detail:
            return False
        return self._endpoint.capabilities.learn(self._base_of(account), model, need=RESPONSES)

    def _base_of(self, account: Account) -> str:
        return self._endpoint.api_base if self._own_base else account.api_base or self._endpoint.api_base


def _asked_by_a_person(messages: Sequence[ChatMessage]) -> bool:
    return bool(messages) and messages[-1]["role"] == "user" and not is_our_word(messages[-1])
