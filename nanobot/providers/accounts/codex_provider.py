"""OpenAI models through a ChatGPT account, at the address that Codex uses, over the Responses wire.

Source of the address and the headers: the published source of OpenAI's own client (github.com/openai/codex,
codex-rs/codex-api and codex-rs/login). `originator` carries our own name.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.accounts import openai
from nanobot.providers.accounts.provider import AccountProvider
from nanobot.providers.accounts.store import Account, AccountStore
from nanobot.providers.base import call_context
from nanobot.providers.limits import Timeouts
from nanobot.providers.wire import responses
from nanobot.providers.wire.responses import conversation_key
from nanobot.providers.wire.stream import Endpoint, EndpointSettings
from nanobot.utils.clock import Clock

BACKEND = "https://chatgpt.com/backend-api/codex"


class OpenAICodexProvider(AccountProvider):
    """The ChatGPT backend. It sets the length and temperature of an answer itself and rejects both parameters."""

    def __init__(
        self,
        store: AccountStore,
        default_model: str = "gpt-5.1-codex",
        *,
        api_base: str | None = None,
        clock: Clock | None = None,
        **settings: Unpack[EndpointSettings],
    ) -> None:
        defaults = Endpoint(
            openai.PROVIDER,
            BACKEND,
            config_key="providers.openaiCodex.apiBase",
            timeouts=Timeouts.reasoning(),
        )
        super().__init__(defaults.with_settings(api_base, settings), default_model, store, openai.renew, clock)

    def create_call(
        self,
        account: Account,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema],
        model: str,
        max_tokens: int,
        temperature: float,
    ) -> responses.ResponsesCall:
        headers = {
            "chatgpt-account-id": account.account_id,
            "originator": "nanobot",
            "OpenAI-Beta": "responses=experimental",
        }
        if session_key := call_context().session_key:
            headers["session_id"] = conversation_key(session_key)
        endpoint = replace(
            self._endpoint, api_key=account.access_token, extra_headers={**headers, **self._endpoint.extra_headers}
        )
        return responses.ResponsesCall(endpoint, messages, tools, model, on_fixup=self._on_fixup)
