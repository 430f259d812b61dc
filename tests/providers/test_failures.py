"""Each vendor's refusal becomes the right error, and no key is in it."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.providers import errors
from nanobot.providers.accounts import provider, store  # noqa: F401 their classes are checked too
from nanobot.providers.endpoint import Endpoint
from nanobot.providers.error_patterns import fixup_for, parse_error_response, retry_after_s

ENDPOINT = Endpoint("acme", "https://api.acme.test/v1", config_key="providers.acme.apiKey")


def openai(message: str = "no", code: str | None = None, kind: str = "invalid_request_error") -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic(kind: str, message: str = "no") -> dict[str, object]:
    return {"type": "error", "error": {"type": kind, "message": message}}


REFUSALS = [
    (401, openai("Incorrect API key provided"), errors.AuthenticationError),
    (403, openai("You are not allowed to sample from this model"), errors.AuthenticationError),
    (
        400,
        [{"error": {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"}}],
        errors.AuthenticationError,
    ),
    (402, {"error": {"message": "Insufficient Balance"}}, errors.QuotaExceededError),
    (429, openai("You exceeded your current quota", "insufficient_quota"), errors.QuotaExceededError),
    (429, openai("Rate limit reached for requests", "rate_limit_exceeded"), errors.RateLimitedError),
    (429, openai("You exceeded your current quota. Please retry in 8.2s."), errors.RateLimitedError),
    (400, anthropic("invalid_request_error", "Your credit balance is too low"), errors.QuotaExceededError),
    (403, openai("This request requires more credits"), errors.QuotaExceededError),
    (404, openai("The model `x` does not exist", "model_not_found"), errors.ModelNotFoundError),
    (404, {"error": 'model "x" not found, try pulling it first'}, errors.ModelNotFoundError),
    (400, openai("x is not a valid model ID"), errors.ModelNotFoundError),
    (400, openai("Model Not Exist"), errors.ModelNotFoundError),
    (400, openai("too long", "context_length_exceeded"), errors.ContextOverflowError),
    (400, openai("This model's maximum context length is 8192 tokens"), errors.ContextOverflowError),
    (400, anthropic("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"), errors.ContextOverflowError),
    (
        400,
        openai("The input token count (9) exceeds the maximum number of tokens allowed"),
        errors.ContextOverflowError,
    ),
    (500, openai("the request exceeds the available context size"), errors.ContextOverflowError),
    (413, anthropic("request_too_large"), errors.ContextOverflowError),
    (400, openai("filtered", "content_filter"), errors.ContentFilteredError),
    (
        400,
        {"error": {"message": "no", "innererror": {"code": "ResponsibleAIPolicyViolation"}}},
        errors.ContentFilteredError,
    ),
    (400, openai("Content Exists Risk"), errors.ContentFilteredError),
    (408, openai(), errors.ModelOverloadedError),
    (409, openai(), errors.ModelOverloadedError),
    (500, openai(), errors.ModelOverloadedError),
    (503, "<html><title>503 Service Unavailable</title></html>", errors.ModelOverloadedError),
    (529, anthropic("overloaded_error"), errors.ModelOverloadedError),
    (400, openai("messages: at least one message is required"), errors.InvalidRequestError),
    (422, {"detail": [{"loc": ["body", "messages"], "msg": "field required"}]}, errors.InvalidRequestError),
    (429, openai("no", kind="usage_limit_reached"), errors.QuotaExceededError),
    (429, openai("not in your plan", kind="usage_not_included"), errors.QuotaExceededError),
    (400, openai("The 'x' model is not supported when using Codex with an account."), errors.ModelNotFoundError),
    (503, openai("busy", "server_is_overloaded"), errors.ModelOverloadedError),
    (400, openai("no", "cyber_policy"), errors.ContentFilteredError),
    (0, openai("no", "rate_limit_exceeded"), errors.RateLimitedError),  # in the middle of a stream
    (0, openai("no", "insufficient_quota"), errors.QuotaExceededError),
    (0, openai("no", "context_length_exceeded"), errors.ContextOverflowError),
    (0, openai("no", "server_error"), errors.ModelOverloadedError),
    (429, {"detail": "Too many tokens, please wait before trying again."}, errors.RateLimitedError),
    (302, "", errors.MalformedResponseError),
]


TOO_LONG = [
    (400, "Your input exceeds the context window of this model. Please adjust your input and try again.", None),
    (
        400,
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length",
        200_000,
    ),
    (400, "prompt is too long: 210000 tokens > 200000 maximum", 200_000),
    (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1_048_576),
    (400, "The number of tokens to keep from the initial prompt is greater than the context length.", None),
    (400, "However, the model is loaded with context length of only 4096 tokens, which is not enough.", 4096),
    (400, "Invalid request: Your request exceeded model token limit: 8192", 8192),
    (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 131_072),
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193.", None),
    (400, "Prompt exceeds max length", None),
    (400, "InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]", None),
    (400, "prompt token count of 130000 exceeds the limit of 128000", 128_000),
    (400, "The input (9000 tokens) is longer than the model's context length (8192 tokens).", 8192),
    (400, "length of prompt_tokens (9000) must be less than max_seq_len (8192).", 8192),
    (413, "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 7000", 6000),
    (429, "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 43000.", 30_000),
    (
        400,
        "The prompt (total length 9000) is too long to fit into the model (context length 8192). Make sure that "
        "`max_model_len` is no smaller than the number of text tokens plus multimodal tokens. For image inputs, the "
        "number of image tokens depends on the number of images, and possibly their aspect ratios as well.",
        8192,
    ),
    (
        400,
        "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 8192 "
        "tokens and your request has 5000 input tokens (4096 > 8192 - 5000).",
        8192,
    ),
]


@pytest.mark.parametrize(("status", "said", "window"), TOO_LONG)
def test_too_long_is_understood_in_every_wording_and_no_fault_of_a_field(status, said, window):
    refusal = parse_error_response(
        status, json.dumps(openai(said, "rate_limit_exceeded" if status in (413, 429) else None))
    )

    error = ENDPOINT.error_of(refusal, "m-1")

    assert isinstance(error, errors.ContextOverflowError)
    assert error.window_tokens == window
    assert fixup_for(refusal, [*SENT, "tools"]) is None


@pytest.mark.parametrize(("status", "body", "kind"), REFUSALS)
def test_a_refusal_becomes_the_error_that_it_means(status, body, kind):
    text = body if isinstance(body, str) else json.dumps(body)

    error = ENDPOINT.error_of(parse_error_response(status, text), "m-1")

    assert type(error) is kind


def test_an_error_names_who_was_asked_and_the_key_in_one_line_and_a_redirect_is_not_followed_with_it():
    rejected = str(ENDPOINT.error_of(parse_error_response(401, json.dumps(openai("Incorrect API key"))), "m-1"))
    moved = str(ENDPOINT.error_of(parse_error_response(307, b"moved", {"location": "http://elsewhere/"})))

    parts = ("acme", "m-1", "https://api.acme.test/v1", "providers.acme.apiKey", "401")
    assert all(part in rejected for part in parts) and "\n" not in rejected
    assert "a redirect to http://elsewhere/, not followed with a key" in moved


def test_a_wait_is_read_as_seconds_milliseconds_or_a_date_and_what_is_no_time_is_ignored():
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    lasts = b'{"error": {"code": "usage_limit_reached", "resets_in_seconds": 7300}}'

    assert retry_after_s({"Retry-After": "7"}) == 7
    assert retry_after_s({"retry-after-ms": "1500"}) == 1.5
    assert 25 < (retry_after_s({"retry-after": soon}) or 0) <= 30
    assert [retry_after_s({"retry-after": value}) for value in ("", "soon", "-1", "nan", "inf")] == [None] * 5
    assert [retry_after_s({"Retry-After-Ms": value}) for value in ("inf", "nan", "1e400", "-1")] == [None] * 4
    assert parse_error_response(429, lasts.replace(b"7300", b"Infinity")).retry_after_s is None
    assert "again in 3 h" in str(ENDPOINT.error_of(parse_error_response(429, lasts)))


@given(st.integers(100, 599), st.binary(max_size=200))
def test_no_body_makes_it_raise(status, body):
    ENDPOINT.error_of(parse_error_response(status, body), "m-1")


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["error", "message", "code", "type", "metadata", "raw", "innererror", "detail", "param"]
                ),
                inner,
            )
        ),
    )
)
def test_no_json_makes_it_raise(value):
    ENDPOINT.error_of(parse_error_response(400, json.dumps(value)), "m-1")


SENT = ["stream", "stream_options", "temperature", "max_tokens", "reasoning_effort", "reasoning_content", "images"]


@pytest.mark.parametrize(
    ("status", "body", "mend"),
    [
        (400, openai("Unrecognized request argument supplied: stream_options"), "drop stream_options"),
        (
            400,
            openai("Unsupported value: 'temperature' does not support 0.1 with this model."),
            "drop temperature",
        ),
        (
            400,
            openai("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
            "need max_completion_tokens",
        ),
        (
            400,
            openai("max_tokens is too large: 8192. This model supports at most 4096 completion tokens."),
            "drop max_tokens",
        ),
        (
            400,
            openai("Invalid max_tokens value, the valid range of max_tokens is [1, 4096]"),
            "drop max_tokens",
        ),
        (
            422,
            {
                "detail": [
                    {"loc": ["body", "messages", 3, "reasoning_content"], "msg": "Extra inputs are not permitted"}
                ]
            },
            "drop reasoning_content",
        ),
        (
            400,
            openai("thinking is enabled but reasoning_content is missing in assistant tool call message at index 2"),
            "need reasoning_content",
        ),
        (400, openai("Conversation roles must alternate user/assistant/user"), "need merged_users"),
        (400, openai("this model does not support image input"), "drop images"),
        (400, openai("messages: at least one message is required"), None),
        (401, openai("Unrecognized request argument supplied: stream_options"), None),
    ],
)
def test_a_refusal_that_names_a_field_says_what_to_change(status, body, mend):
    assert fixup_for(parse_error_response(status, json.dumps(body)), SENT) == mend


def subclasses(kind: type[Exception]) -> list[type[Exception]]:
    return [kind, *(each for child in kind.__subclasses__() for each in subclasses(child))]


@pytest.mark.parametrize("kind", subclasses(errors.ModelCallError))
def test_an_error_is_a_message_to_a_person(kind: type[errors.ModelCallError]):
    assert kind is errors.ModelCallError or kind.what != errors.ModelCallError.what
    assert str(kind()).endswith((".", "!", "?"))
