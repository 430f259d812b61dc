"""What an error response means: from status and body to an error type, or to a fact about the endpoint that makes the
request acceptable.

Vendors use the same status for different things; the meaning is in a code or in the wording. The tables hold what
OpenAI, ChatGPT, Azure, Anthropic, Google, DeepSeek, Moonshot, Mistral, Groq, OpenRouter, vLLM, llama.cpp, LM Studio and
Ollama are known to send.
"""

import json
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from nanobot.providers.errors import (
    AuthenticationError,
    ContentFilteredError,
    ContextOverflowError,
    MalformedResponseError,
    ModelCallError,
    ModelNotFoundError,
    ModelOverloadedError,
    QuotaExceededError,
    RateLimitedError,
    kind_of_status,
)

_TABLE: tuple[tuple[type[ModelCallError], str, str], ...] = (
    (
        ContextOverflowError,
        "context_length_exceeded exceed_context_size_error model_max_prompt_tokens_exceeded string_above_max_length "
        "request_too_large",
        r"maximum (?:context|prompt|model) length|context (?:length|window|size)[^.]{0,60}(?:exceed|too)|"
        r"exceed\w*[^.]{0,60}context (?:length|window|size|limit)|(?:prompt|input) is too long|too long to fit|"
        r"too many (?:input )?tokens|"
        r"(?:input|prompt) token count[^.]*exceed|reduce the length of|exceed\w* (?:the )?model token limit|"
        r"exceeds? the (?:model's )?maximum (?:number of )?(?:input )?tokens|prompt exceeds max length|"
        r"request too large for|(?:larger|longer|greater) than the (?:model's )?context|context length of only|"
        r"`?inputs`? tokens \+ `?max_new_tokens|range of input length|less than max_seq_len|"
        r"max_tokens[^.]{0,40}exceeds[^.]{0,40}context",
    ),
    (
        QuotaExceededError,
        "insufficient_quota billing_hard_limit_reached billing_not_active insufficient_balance "
        "exceeded_current_quota_error usage_limit_reached usage_not_included",
        r"insufficient (?:balance|quota|credits?|funds)|exceeded your current quota|credit balance is too low|"
        r"requires more credits|out of credits|billing (?:hard )?limit|payment required",
    ),
    (
        ContentFilteredError,
        "content_filter content_policy_violation responsibleaipolicyviolation cyber_policy",
        r"content (?:management )?(?:policy|filter)|flagged|safety (?:system|filter)|content exists risk",
    ),
    (
        ModelNotFoundError,
        "model_not_found model_not_exist deploymentnotfound",
        r"model[^.]{0,80}(?:not found|does not exist|not exist|is not available|isn't available)|"
        r"model[^.]{0,80}not supported (?:by|when)|"
        r"(?:unknown|no such|invalid|not a valid) model|not a valid model|no endpoints found|try pulling it",
    ),
    (
        AuthenticationError,
        "invalid_api_key authentication_error permission_error",
        r"(?:incorrect|invalid|missing|wrong|no) api[ _-]?key|api key not valid|unauthori[sz]ed",
    ),
    (RateLimitedError, "rate_limit_exceeded rate_limit_error", r"rate limit|too many requests"),
    (
        ModelOverloadedError,
        "overloaded_error engine_overloaded_error server_is_overloaded server_error api_error",
        r"overloaded|temporarily unavailable|try again later|currently loading",
    ),
)
"""Error class, the codes that mean it, and the wording; of several wordings the first counts."""
_CODES = {code: kind for kind, codes, _ in _TABLE for code in codes.split()}
_WAIT = r"try again in\s*(\d+(?:\.\d+)?)\s*(ms|s\b|seconds?)"
"""This and the patterns below are compiled with the first failure: at import, that takes 4 ms."""


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """An HTTP error of a model server, parsed."""

    status: int
    message: str
    codes: tuple[str, ...] = ()
    param: str = ""
    retry_after_s: float | None = None


def parse_error_response(status: int, body: bytes | str, headers: Mapping[str, str] | None = None) -> ErrorResponse:
    """Parse an error body of any shape. Never raises."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    headers = headers or {}
    if 300 <= status < 400:
        return ErrorResponse(status, f"a redirect to {headers.get('location', 'elsewhere')}, not followed with a key")
    retry_after = retry_after_s(headers)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return ErrorResponse(status, _excerpt(text), retry_after_s=retry_after)
    return error_response_of(data, status, retry_after)


def error_response_of(data: Any, status: int = 0, retry_after: float | None = None) -> ErrorResponse:
    """The same for an error that is parsed already, such as one in the middle of a stream."""
    if isinstance(data, list) and data:  # Google wraps it in a list
        data = data[0]
    error = data.get("error", data) if isinstance(data, dict) else data
    if not isinstance(error, dict):
        text = error if isinstance(error, str) else _excerpt(json.dumps(data))
        return ErrorResponse(status, text, retry_after_s=retry_after)
    message = next((error[name] for name in ("message", "detail", "msg", "error") if error.get(name)), "")
    message = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    metadata, innererror = error.get("metadata"), error.get("innererror")
    if isinstance(metadata, dict) and metadata.get("raw"):  # OpenRouter puts the true reason here
        message = f"{message}: {metadata['raw']}"
    values = [error.get("code"), error.get("type"), error.get("status")]
    values += [innererror.get("code")] if isinstance(innererror, dict) else []
    codes = tuple(str(value).lower() for value in values if value not in (None, ""))
    status = status or next((int(code) for code in codes if re.fullmatch("[1-5][0-9]{2}", code)), 0)
    resets = error.get("resets_in_seconds")  # ChatGPT, of an account's limit
    if retry_after is None and isinstance(resets, int | float):
        retry_after = _wait_s(resets)
    if retry_after is None and (match := re.search(_WAIT, message, re.IGNORECASE)) is not None:
        retry_after = float(match[1]) / (1000 if match[2].lower() == "ms" else 1)
    param = error.get("param")
    return ErrorResponse(status, message, codes, param if isinstance(param, str) else "", retry_after)


def kind_of(response: ErrorResponse) -> type[ModelCallError]:
    """The error class by status, code and wording; each vendor uses other statuses for the same thing."""
    status, message = response.status, response.message
    by_code = next((_CODES[code] for code in response.codes if code in _CODES), None)

    def by_wording(*kinds: type[ModelCallError]) -> type[ModelCallError] | None:
        return next(
            (kind for kind, _, phrase in _TABLE if (not kinds or kind in kinds) and _matches(phrase, message)), None
        )

    if 300 <= status < 400:
        return MalformedResponseError
    if status in (413, 429) and "request too large for" in message.lower():
        return ContextOverflowError  # of the tokens a minute: only a smaller request helps
    if status == 429:
        if re.search(r"retry (?:in|after)", message, re.IGNORECASE):  # Google writes "quota" for both
            return RateLimitedError
        quota = QuotaExceededError if by_code is QuotaExceededError else by_wording(QuotaExceededError)
        return quota or RateLimitedError
    if status in (401, 402, 408, 409):  # unambiguous
        return kind_of_status(status)
    if by_code is not None and (status < 500 or by_code is ContextOverflowError):
        return by_code
    if status == 413:
        return ContextOverflowError
    if status >= 500:
        return by_wording(ContextOverflowError) or ModelOverloadedError  # llama.cpp sends it with a 500
    if status == 403:
        return by_wording(QuotaExceededError, ContentFilteredError, ModelNotFoundError) or AuthenticationError
    if status == 404:
        return ModelNotFoundError
    return by_wording() or (kind_of_status(status) if status else ModelOverloadedError)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The seconds that a server asks us to wait: from `Retry-After-Ms`, or `Retry-After` in seconds or as a date."""
    by_name = {name.lower(): value for name, value in headers.items()}
    with suppress(KeyError, ValueError):
        return _wait_s(float(by_name["retry-after-ms"]) / 1000)
    value = by_name.get("retry-after", "")
    with suppress(ValueError):
        return _wait_s(float(value))
    with suppress(ValueError, TypeError, OverflowError):
        return _wait_s(max(0.0, parsedate_to_datetime(value).timestamp() - time.time()))
    return None


def _wait_s(seconds: float) -> float | None:
    """The seconds if they are a plausible wait, not negative or infinite."""
    return seconds if 0 <= seconds < 1e9 else None


def _excerpt(text: str) -> str:
    """The text of a body that is not JSON, without HTML tags."""
    if "<" in text:
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
        text = title.group(1) if title else re.sub(r"<[^>]*>", " ", text)
    return " ".join(text.split())[:300]


# What a 400 says is wrong with the request, so that it can be corrected.

_UNKNOWN = (
    r"unknown|unrecogni[sz]ed|unsupported|not supported|does not support|doesn't support|not permitted|not allowed|"
    r"unexpected|extra (?:inputs|fields)|additional properties|not implemented|invalid (?:field|parameter|argument)|"
    r"deprecated|no such|cannot be used|not available|only the default"
)
_MISSING = r"missing|required|must (?:be|include|contain)|not found|should be passed|passed back"
_REPLY_TOO_LONG = (
    r"max_(?:completion_)?tokens[^.]{0,40}(?:too large|valid range)|supports at most \d+ (?:completion|output) tokens"
)


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


def fixup_for(response: ErrorResponse, sent: Iterable[str]) -> str | None:
    """What a 400 or 422 tells about the endpoint, as a fact for `CapabilityStore`. `sent`: fields to drop."""
    if response.status not in (400, 422) or kind_of(response) is ContextOverflowError:
        return None  # its wording may mention max_tokens and images, which are not at fault
    text = f"{response.param} {response.message} {' '.join(response.codes)}"
    fields = list(sent)
    if _matches(_REPLY_TOO_LONG, text) and {"max_tokens", "max_completion_tokens"} & set(fields):
        return "drop max_tokens"
    if "max_completion_tokens" in text and "max_tokens" in fields:
        return "need max_completion_tokens"
    if "reasoning_content" in text:
        if _matches(_MISSING, text) and not _matches(_UNKNOWN, text):
            return "need reasoning_content"
        if "reasoning_content" in fields:
            return "drop reasoning_content"
    if re.search(r"\balternat\w+|consecutive (?:user|messages)", text, re.IGNORECASE):
        return "need merged_users"
    if "images" in fields and re.search(r"image|vision|multimodal|mmproj", text, re.IGNORECASE):
        return "drop images"
    if not _matches(_UNKNOWN, text):
        return None
    named = [name for name in fields if re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", text)]
    named = [name for name in (response.param, response.param.split(".")[0]) if name in fields] + named
    return f"drop {named[0]}" if named else None
