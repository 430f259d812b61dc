"""Two models, of which the first fails in each way that a provider fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nanobot.testing.model_server import CutStream, Fail, FakeModels, Garbage, Hang, Raw, Reset, Say, Slow, Step


@dataclass(frozen=True)
class Failure:
    """How the first model fails, and what becomes of it."""

    step: Step | None
    """What it does, each time it is asked; None: nobody is at its address."""
    waits: tuple[float, ...] = ()
    """How long is waited before each retry."""
    answers: str = "B"
    """Who answers: A, B, or nobody."""
    says: str = ""
    """What the person reads: of the switch in a notice, or as the reply."""
    alone: tuple[float, ...] | None = None
    """The same where no other model is left, if that differs."""
    once: bool = False
    """Whether the first model fails only once."""
    slow: bool = False
    """Whether it takes a limit of ours."""

    @property
    def requests(self) -> int:
        """How often the first model is asked."""
        return 1 + len(self.waits)


FAILURES = {
    "429 with Retry-After, once": Failure(
        Fail(429, "slow", retry_after=2), (2,), "A", "Retry 1 of 3 in 2 s", once=True
    ),
    "429 without, once": Failure(Fail(429, "slow"), (1,), "A", "Retry 1 of 3 in 1 s", once=True),
    "500, once": Failure(Fail(500), (1,), "A", "the provider is overloaded or failing (HTTP 500)", once=True),
    "reset, once": Failure(Reset(), (1,), "A", "the provider cannot be reached", once=True),
    "429 without, for good": Failure(Fail(429, "slow"), (1, 2, 4), says="too many requests for this key"),
    "429 with Retry-After 5, for good": Failure(
        Fail(429, "slow", retry_after=5), (5, 5), says="too many requests", alone=(5, 5, 5)
    ),
    "429 with Retry-After 30": Failure(
        Fail(429, "slow", retry_after=30), says="too many requests for this key", alone=(30, 30, 30)
    ),
    "429 with Retry-After 1 h": Failure(Fail(429, "slow", retry_after=3600), says="too many requests for this key"),
    "500": Failure(Fail(500), (1, 2, 4), says="the provider is overloaded or failing"),
    "529": Failure(Fail(529, "Overloaded", kind="overloaded_error"), (1, 2, 4), says="overloaded or failing"),
    "refused": Failure(None, (1, 2, 4), says="the provider cannot be reached"),
    "reset": Failure(Reset(), (1, 2, 4), says="the provider cannot be reached"),
    "garbage": Failure(Garbage(), (1, 2, 4), says="the response cannot be parsed"),
    "nothing at all": Failure(Garbage(b"", "application/json"), (1, 2, 4), says="the response cannot be parsed"),
    "cut before text": Failure(CutStream(""), (1, 2, 4), says="the answer broke off in the middle"),
    "first-token stall": Failure(Hang(), says="the model did not answer in time", slow=True),
    "trickle of nothing": Failure(
        Slow(Raw([b": hm\n\n"] * 300), each_s=0.01), says="did not answer in time", slow=True
    ),
    "mid-stream stall": Failure(Hang("Half of"), answers="nobody", says="waited 0.4 s for the next token", slow=True),
    "endless trickle": Failure(
        Slow(Say("la " * 300, pieces=300), each_s=0.02),
        answers="nobody",
        says="waited 0.8 s for the end of the answer",
        slow=True,
    ),
    "401": Failure(Fail(401, "Incorrect API key"), says="Check providers.openai.apiKey in the config"),
    "403": Failure(Fail(403, "Your key may not use this"), says="Check providers.openai.apiKey in the config"),
    "402": Failure(Fail(402, "Insufficient Balance"), says="Top up the account of openai"),
    "quota": Failure(
        Fail(429, "You exceeded your current quota", "insufficient_quota"), says="Top up the account of openai"
    ),
    "400": Failure(Fail(400, "the request is odd"), answers="nobody", says="rejected the request"),
    "404": Failure(Fail(404, "no such model", "model_not_found"), answers="nobody", says="agents.defaults.model"),
    "content filter": Failure(Fail(400, "no", "content_filter"), answers="nobody", says="content filter refused"),
    "overflow": Failure(
        Fail(400, "too long", "context_length_exceeded"), answers="nobody", says="the model's context window"
    ),
}


@contextmanager
def two_models() -> Iterator[tuple[FakeModels, FakeModels]]:
    with FakeModels(default=Say("This is A.")) as a, FakeModels(default=Say("This is B.")) as b:
        yield a, b


def with_fallback(a: FakeModels, b: FakeModels, limits: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    spare = {"model": "deepseek-chat", "provider": "deepseek", "maxTokens": 1000}
    return {
        "agents": {"defaults": {"model": "gpt-4.1", "provider": "openai", "fallbackModels": [spare], **defaults}},
        "providers": {
            "openai": {"apiKey": "sk-a", "apiBase": a.v1, **limits},
            "deepseek": {"apiKey": "sk-b", "apiBase": b.v1, **limits},
        },
    }
