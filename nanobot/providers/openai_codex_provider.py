"""Models of OpenAI by a ChatGPT account, at the address its Codex uses. The wire: `responses`; the account: `oauth`.

Source of the address and the headers: the published source of OpenAI's own client (github.com/openai/codex,
codex-rs/codex-api and codex-rs/login). What is sent in `originator` is our own name.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers import responses
from nanobot.providers.account_provider import AccountProvider
from nanobot.providers.base import call_context
from nanobot.providers.exchange import Endpoint, EndpointSettings
from nanobot.providers.input_items import SealedThoughts, conversation_key, tool_of
from nanobot.providers.limits import Timeouts
from nanobot.providers.oauth import openai
from nanobot.providers.oauth.accounts import Account, AccountStore
from nanobot.providers.wire import ToolsEncoder
from nanobot.utils.clock import Clock

BACKEND = "https://chatgpt.com/backend-api/codex"


class OpenAICodexProvider(AccountProvider):
    """The ChatGPT backend. It sets the length and the temperature of an answer itself and takes no word on either."""

    def __init__(
        self,
        store: AccountStore,
        default_model: str = "gpt-5.1-codex",
        *,
        api_base: str | None = None,
        clock: Clock | None = None,
        **settings: Unpack[EndpointSettings],
    ) -> None:
        usual = Endpoint(
            openai.PROVIDER,
            BACKEND,
            config_key="providers.openaiCodex.apiBase",
            timeouts=Timeouts.reasoning(),
            tools=ToolsEncoder(tool_of),
        )
        super().__init__(usual.with_settings(api_base, settings), default_model, store, openai.renew, clock)
        self._sealed = SealedThoughts()

    def call_for(
        self,
        account: Account,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema],
        model: str,
        max_tokens: int,
        temperature: float,
    ) -> responses.Call:
        """One call as this account."""
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
        return responses.Call(endpoint, messages, tools, model, self._sealed, self._mended)
