"""The ways a model call fails. The type decides whether another model or provider is tried; the text says which key or
setting to change.

   ProviderError
   |-- AuthenticationError          401, 403: the key                      another provider
   |-- QuotaExceededError           402, 429: the account is empty         another provider
   |-- ModelNotFoundError           404: the model's name                  nobody
   |-- InvalidRequestError          400, 422: what we sent                 nobody
   |-- ContextOverflowError         longer than the context window         nobody, after one shrink
   |-- ContentFilteredError         refused by a content filter            nobody
   |-- BusyError
   |   |-- RateLimitedError         429                                    another model
   |   |-- ModelOverloadedError     408, 409, 5xx, 529                     another model
   |   `-- ModelUnavailableError    paused by the breaker, not sent        nobody, for some seconds
   |-- ProviderTimeoutError         one of our time limits                 another model
   |-- ConnectionFailedError        refused, reset, unknown host           another model
   |-- StreamCutError               broke off, or aborted by the provider  another model
   `-- MalformedResponseError       no valid response, or too large        another model
"""

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar
from urllib.parse import urlsplit

from nanobot import errors
from nanobot.net.http import is_loopback


class TryElsewhere(StrEnum):
    """Who else to try after a failure."""

    NOBODY = "nobody"
    OTHER_MODEL = "other_model"
    OTHER_PROVIDER = "other_provider"


@dataclass(frozen=True, slots=True)
class CallTarget:
    """The provider and model of a call, for error texts."""

    provider: str = ""
    model: str = ""
    api_base: str = ""
    config_key: str = ""
    """The config key to look at first, such as `providers.openai.apiKey`."""

    def __str__(self) -> str:
        parts = [self.provider or "the model", f"model {self.model}" if self.model else "", self.api_base]
        return ", ".join(part for part in parts if part)

    @property
    def name(self) -> str:
        """Model and provider, short."""
        if self.model and self.provider:
            return f"{self.model} ({self.provider})"
        return self.model or self.provider or "the model"


class ModelCallError(errors.ProviderError):
    """A model call failed. `str()` is one line with provider, base URL, model and what to change."""

    what: ClassVar[str] = "The model call failed"
    """What happened, without a full stop. `brief` drops the part after a semicolon."""
    try_elsewhere = TryElsewhere.NOBODY
    next_step = "Try again."

    def __init__(
        self,
        detail: str = "",
        *,
        target: CallTarget | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.detail = " ".join(detail.split())[:400]
        self.target = target or CallTarget()
        self.status = status
        self.retry_after_s = retry_after_s
        self.previous: tuple[ModelCallError, ...] = ()
        """Failures of the models tried before this one in the same call."""
        self.skipped: tuple[str, ...] = ()
        """Models that were not tried and why, one sentence each."""
        super().__init__(detail)

    def __str__(self) -> str:
        previous = [f"Tried before: {error.summary()}" for error in self.previous]
        detail = f": {self.detail}" if self.detail else ""
        full_stop = "" if detail.endswith((".", "!", "?")) else "."
        sentence = f"{self.what} [{self.target}]{self._status()}{detail}{full_stop} {self.advice()}"
        return " ".join([sentence, *previous, *self.skipped])

    def summary(self) -> str:
        """Model and failure in a few words, for the text of another message. Includes the next step if only the owner
        can take it.
        """
        step = f" {self.advice()}" if self.try_elsewhere is TryElsewhere.OTHER_PROVIDER else ""
        return f"{self.target.name}: {self.brief()}.{step}"

    def brief(self) -> str:
        """What happened in a few words, to be part of another sentence."""
        what = self.what.partition(";")[0]
        return f"{what[:1].lower()}{what[1:]}{self._status()}"

    def _status(self) -> str:
        return f" (HTTP {self.status})" if self.status else ""

    def advice(self) -> str:
        key = self.target.config_key or "providers.NAME.apiKey"
        return self.next_step.format(
            config_key=key, section=key.rpartition(".")[0], provider=self.target.provider or "the provider"
        )


class AuthenticationError(ModelCallError):
    what = "The API key was rejected"
    retryable = False
    try_elsewhere = TryElsewhere.OTHER_PROVIDER
    next_step = "Check {config_key} in the config, or run `nanobot onboard`."


class QuotaExceededError(ModelCallError):
    what = "The account has no money or quota left"
    retryable = False
    try_elsewhere = TryElsewhere.OTHER_PROVIDER
    next_step = "Top up the account of {provider}, or choose another model with `/model`."

    def advice(self) -> str:
        again = f"There is quota again in {format_wait(self.retry_after_s)}. " if self.retry_after_s else ""
        return again + super().advice()


class ModelNotFoundError(ModelCallError):
    what = "The provider does not know this model"
    retryable = False
    next_step = (
        "Change agents.defaults.model or agents.defaults.provider in the config; where `/model` chose this model, send "
        "`/model default`."
    )


class InvalidRequestError(ModelCallError):
    what = "The provider rejected the request"
    retryable = False
    next_step = "If it happens again, start a new session with `/new` and report it."


_WINDOW = re.compile(
    r"(?:(?:maximum )?(?:context|prompt|model) (?:length|window|size|limit)(?: is| of)?(?: only)?[:\s(]{1,3}|"
    r"\d > |tokens > |max_seq_len \(|token limit: |tokens allowed \(|exceeds the limit of |\(TPM\): Limit )"
    r"(\d{3,8})\b(?! \+)",
    re.IGNORECASE,
)


class ContextOverflowError(ModelCallError):
    what = "The request is longer than the model's context window"
    next_step = "Start a new session with `/new`, or set agents.defaults.contextWindowTokens to the model's window."

    @property
    def window_tokens(self) -> int | None:
        """The size of the context window in tokens if the error names it."""
        match = _WINDOW.search(self.detail)
        return int(match[1]) if match else None


class ContentFilteredError(ModelCallError):
    what = "The provider's content filter refused the request or the answer"
    next_step = "Rephrase the message, or choose another model with `/model`."


class BusyError(ModelCallError):
    what = "The provider takes no requests at the moment"
    try_elsewhere = TryElsewhere.OTHER_MODEL

    def advice(self) -> str:
        when = f"in {format_wait(self.retry_after_s)}" if self.retry_after_s else "in a moment"
        if self.try_elsewhere is TryElsewhere.NOBODY:
            return f"Try again {when}."
        return f"Try again {when}, or name another model in agents.defaults.fallbackModels."


class RateLimitedError(BusyError):
    what = "Too many requests for this key"


class ModelOverloadedError(BusyError):
    what = "The provider is overloaded or failing"


class ProviderTimeoutError(ModelCallError):
    what = "The model did not answer in time"
    try_elsewhere = TryElsewhere.OTHER_MODEL
    next_step = "Try again, or raise firstTokenTimeoutS, idleTimeoutS or totalTimeoutS in {section}."


class ConnectionFailedError(ModelCallError):
    what = "The provider cannot be reached"
    try_elsewhere = TryElsewhere.OTHER_MODEL
    next_step = "Check {section}.apiBase in the config, and the network."

    def brief(self) -> str:
        return f"{super().brief()} (is the server running?)" if self._is_local() else super().brief()

    def advice(self) -> str:
        return f"Is the server running? {super().advice()}" if self._is_local() else super().advice()

    def _is_local(self) -> bool:
        return is_loopback(urlsplit(self.target.api_base).hostname or "")


class StreamCutError(ModelCallError):
    what = "The answer broke off in the middle"
    try_elsewhere = TryElsewhere.OTHER_MODEL


class MalformedResponseError(ModelCallError):
    what = "The response cannot be parsed"
    try_elsewhere = TryElsewhere.OTHER_MODEL
    next_step = "Check that {section}.apiBase in the config is the base URL of a chat completions API."


class ModelUnavailableError(BusyError):
    what = "The model is paused after repeated failures; no request was sent"
    try_elsewhere = TryElsewhere.NOBODY


def format_wait(seconds: float) -> str:
    """A waiting time for a person: seconds, minutes or hours, rounded up."""
    if seconds < 120:
        return f"{max(1, math.ceil(seconds))} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 7200 else f"{math.ceil(seconds / 3600)} h"


def kind_of_status(status: int) -> type[ModelCallError]:
    """The error type of an HTTP status if nothing more is known."""
    if status in (401, 403):
        return AuthenticationError
    if status in (408, 409) or status >= 500:
        return ModelOverloadedError
    kinds = {402: QuotaExceededError, 404: ModelNotFoundError, 429: RateLimitedError}
    return kinds.get(status, InvalidRequestError)
