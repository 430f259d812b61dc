"""How a model call fails. A type says whether another model or another provider is worth a try; its text says which
key or setting to change.

    ProviderError
    |-- AuthenticationError          401, 403: the key                      another provider
    |-- QuotaExceededError           the account is empty                   another provider
    |-- ModelNotFoundError           404: the model's name                  nobody
    |-- InvalidRequestError          400, 422: what we sent                 nobody
    |-- ContextOverflowError         the request is longer than the window  nobody, after one shrink
    |-- ContentFilteredError         refused for what it says               nobody
    |-- BusyError
    |   |-- RateLimitedError         429                                    another model
    |   |-- ModelOverloadedError     408, 409, 5xx, 529                     another model
    |   `-- ModelsOutError           nobody was asked: all are out          nobody, for some seconds
    |-- ProviderTimeoutError         nothing came in time                   another model
    |-- ConnectionFailedError        refused, reset, no such host           another model
    |-- StreamCutError               the answer broke off                   another model
    `-- MalformedResponseError       what came cannot be read               another model
"""

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from nanobot import errors


class TryElsewhere(StrEnum):
    """Who else is worth asking after a failure."""

    NOBODY = "nobody"
    OTHER_MODEL = "other_model"
    OTHER_PROVIDER = "other_provider"


@dataclass(frozen=True, slots=True)
class CallTarget:
    """Who was asked, in words a person can act on."""

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
        """The model, and who has it, in a few words."""
        if self.model and self.provider:
            return f"{self.model} ({self.provider})"
        return self.model or self.provider or "the model"


class ModelCallError(errors.ProviderError):
    """A model call failed. `str()` is one line with the provider, the base URL, the model sent and what to change."""

    try_elsewhere = TryElsewhere.NOBODY
    next_step = "Send the message again."

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
        self.earlier: tuple[ModelCallError, ...] = ()
        """How others failed that were asked for the same answer before."""
        self.passed_over: tuple[str, ...] = ()
        """Who was not asked, and why, each in a sentence."""
        super().__init__(detail)

    def __str__(self) -> str:
        before = [f"Asked before it: {error.aside()}" for error in self.earlier]
        return " ".join([self._sentence(), *before, *self.passed_over])

    def aside(self) -> str:
        """Who failed and how, beside what matters more; with the next step where nobody but the owner can take it."""
        step = f" {self.advice()}" if self.try_elsewhere is TryElsewhere.OTHER_PROVIDER else ""
        return f"{self.target.name}: {self.brief()}.{step}"

    def told_by(self, target: CallTarget) -> None:
        """Say whose failure it is, where whoever raised it did not."""
        if not self.target.model:
            self.target = target

    def brief(self) -> str:
        """What happened, in a few words without an end, for a sentence of somebody else."""
        what = self._what().partition(";")[0]
        return f"{what[:1].lower()}{what[1:]}{self._status()}"

    def _what(self) -> str:
        return (self.__doc__ or "").split("\n")[0].rstrip(".")

    def _status(self) -> str:
        return f" (HTTP {self.status})" if self.status else ""

    def _sentence(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        full_stop = "" if detail.endswith((".", "!", "?")) else "."
        return f"{self._what()} [{self.target}]{self._status()}{detail}{full_stop} {self.advice()}"

    def advice(self) -> str:
        """The next step."""
        key = self.target.config_key or "providers.NAME.apiKey"
        return self.next_step.format(
            config_key=key, section=key.rpartition(".")[0], provider=self.target.provider or "the provider"
        )


class AuthenticationError(ModelCallError):
    """The key was not accepted."""

    try_elsewhere = TryElsewhere.OTHER_PROVIDER
    next_step = "Check {config_key} in the config, or run `nanobot onboard`."


class QuotaExceededError(ModelCallError):
    """The account has no money or quota left."""

    try_elsewhere = TryElsewhere.OTHER_PROVIDER
    next_step = "Top up the account of {provider}, or choose another model with `/model`."


class ModelNotFoundError(ModelCallError):
    """The provider does not know this model."""

    next_step = "Change agents.defaults.model in the config, or agents.defaults.provider."


class InvalidRequestError(ModelCallError):
    """The provider did not take the request."""

    next_step = "If it goes on, start afresh with `/new`, and report it."


_WINDOW = re.compile(
    r"(?:(?:maximum )?(?:context|prompt|model) (?:length|window|size|limit)(?: is| of)?(?: only)?[:\s(]{1,3}|"
    r"\d > |tokens > |max_seq_len \(|token limit: |tokens allowed \(|exceeds the limit of |\(TPM\): Limit )"
    r"(\d{3,8})\b(?! \+)",
    re.IGNORECASE,
)


class ContextOverflowError(ModelCallError):
    """The request is longer than the model's window."""

    @property
    def window_tokens(self) -> int | None:
        """How many tokens the model takes, where it says so."""
        said = _WINDOW.search(self.detail)
        return int(said[1]) if said else None

    next_step = "Start afresh with `/new`, or set agents.defaults.contextWindowTokens to the model's window."


class ContentFilteredError(ModelCallError):
    """The provider's content filter refused."""

    next_step = "Put it another way, or choose another model with `/model`."


class BusyError(ModelCallError):
    """The provider takes no requests for the moment."""

    try_elsewhere = TryElsewhere.OTHER_MODEL

    def advice(self) -> str:
        """To wait: as long as it said, if it did."""
        when = f"in {in_words(self.retry_after_s)}" if self.retry_after_s else "in a moment"
        return f"Send the message again {when}."


class RateLimitedError(BusyError):
    """Too many requests for this key."""


class ModelOverloadedError(BusyError):
    """The provider is busy or broken; another may not be."""


class ProviderTimeoutError(ModelCallError):
    """The model did not answer in time."""

    try_elsewhere = TryElsewhere.OTHER_MODEL
    next_step = "Send the message again, or raise firstTokenTimeoutS, idleTimeoutS or totalTimeoutS in {section}."


class ConnectionFailedError(ModelCallError):
    """The provider cannot be reached."""

    try_elsewhere = TryElsewhere.OTHER_MODEL
    next_step = "Check the network, and {section}.apiBase in the config."


class StreamCutError(ModelCallError):
    """The answer broke off in the middle."""

    try_elsewhere = TryElsewhere.OTHER_MODEL
    next_step = "Send the message again."


class MalformedResponseError(ModelCallError):
    """The answer cannot be read."""

    try_elsewhere = TryElsewhere.OTHER_MODEL
    next_step = "Check that {section}.apiBase in the config is the base URL of such an API."


class ModelsOutError(BusyError):
    """Nobody was asked: the model is out of order for the moment."""

    try_elsewhere = TryElsewhere.NOBODY

    @classmethod
    def because_of(cls, last: ModelCallError | None, *, target: CallTarget, again_in_s: float) -> "ModelsOutError":
        """It failed again and again, at last like this."""
        if last is None:
            return cls(target=target, retry_after_s=again_in_s)
        step = last.advice() if last.try_elsewhere is TryElsewhere.OTHER_PROVIDER else ""
        detail = f"its last failure was that {last.brief()}: {last.detail}".rstrip(": ")
        return cls(f"{detail}. {step}".strip(" ."), target=target, retry_after_s=again_in_s)


class FailedResponse(Protocol):
    """What an answer with finish_reason "error" tells, in the words of the original design."""

    content: str | None
    error_status_code: int | None
    error_kind: str | None
    error_retry_after_s: float | None
    error_should_retry: bool | None


_BY_KIND: dict[str, type[ModelCallError]] = {
    "timeout": ProviderTimeoutError,
    "connection": ConnectionFailedError,
    "rate_limit": RateLimitedError,
    "overloaded": ModelOverloadedError,
    "auth": AuthenticationError,
    "quota": QuotaExceededError,
    "context_length": ContextOverflowError,
    "content_filter": ContentFilteredError,
}


def in_words(seconds: float) -> str:
    """A time to wait, as a person says it."""
    if seconds < 120:
        return f"{max(1, math.ceil(seconds))} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 7200 else f"{math.ceil(seconds / 3600)} h"


def kind_of_status(status: int) -> type[ModelCallError]:
    """What an HTTP status means where nothing more is known."""
    if status in (401, 403):
        return AuthenticationError
    if status == 402:
        return QuotaExceededError
    if status == 404:
        return ModelNotFoundError
    if status == 429:
        return RateLimitedError
    if status in (408, 409) or status >= 500:
        return ModelOverloadedError
    return InvalidRequestError


def error_from_response(response: FailedResponse) -> ModelCallError:
    """Our typed error for a failure that a provider of somebody's own reported as an answer."""
    kind = _BY_KIND.get(response.error_kind or "")
    if kind is None and response.error_status_code is not None:
        kind = kind_of_status(response.error_status_code)
    if kind is None:
        kind = ModelOverloadedError if response.error_should_retry else InvalidRequestError
    return kind(response.content or "", status=response.error_status_code, retry_after_s=response.error_retry_after_s)
