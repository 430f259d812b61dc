"""Models by a ChatGPT account, over the wire: what goes out, what comes back, what is refused."""

import asyncio
import base64
import copy
import json
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.messages.repair import legalise
from nanobot.messages.types import ChatMessage
from nanobot.providers.accounts.openai import OpenAICodexProvider
from nanobot.providers.accounts.store import LoginNeededError
from nanobot.providers.base import CallContext, LLMResponse, ReasoningDelta, TextDelta, call_context_scope
from nanobot.providers.errors import (
    ContentFilteredError,
    MalformedResponseError,
    RateLimitedError,
    StreamCutError,
)
from nanobot.providers.wire.responses import build_input
from nanobot.testing.model_server import Calls, CutStream, Fail, Garbage, Raw, Responses, Say
from nanobot.testing.model_server import responses_event as event
from nanobot.testing.protocol_rules import encrypted, responses_problems
from tests.fakes.oauth_server import ACCOUNT_ID, FakeAuthority
from tests.support.sample_requests import HELLO, LIST_DIR, TOOLS, heads_of_each_other

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=")


class Codex:
    """The provider, logged in, and the server that plays ChatGPT."""

    def __init__(self, server: FakeAuthority, **settings: Any) -> None:
        self.server = server
        self.account = server.openai_account()
        server.accounts.save(self.account)
        self.provider = OpenAICodexProvider(server.accounts, "gpt-5.1-codex", api_base=server.codex, **settings)

    async def ask(self, rows: list[ChatMessage] | None = None, *steps: Any, **words: Any) -> LLMResponse:
        self.server.script(*steps)
        return await self.provider.chat(rows or HELLO, words.pop("tools", TOOLS), **words)

    @property
    def sent(self) -> dict[str, Any]:
        """The last request."""
        return self.server.chats[-1].json


@pytest.fixture
async def codex() -> AsyncIterator[Codex]:
    with FakeAuthority() as server:
        codex = Codex(server)
        yield codex
        await codex.provider.close()


def row_of(response: LLMResponse) -> ChatMessage:
    """The row that the runner would store."""
    row: ChatMessage = {"role": "assistant", "content": response.content}
    if response.tool_calls:
        row["tool_calls"] = [call.to_message() for call in response.tool_calls]
    row["thinking_blocks"] = response.thinking_blocks
    return json.loads(json.dumps(row))  # type: ignore[no-any-return]


def result(call_id: str, text: str, **more: Any) -> ChatMessage:
    return {"role": "tool", "tool_call_id": call_id, "name": "list_dir", "content": text, **more}  # type: ignore[typeddict-item]


async def test_a_whole_request_as_it_goes_out(codex):
    thought = {"id": "rs_1", "type": "reasoning", "content": None, "encrypted_content": encrypted("Hm.")}
    call = {"id": "c1", "type": "function", "function": {"name": "list_dir", "arguments": '{"path": "."}'}}
    rows: list[Any] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "look", "runtime_context": "[now]", "turn_id": "t", "provenance": "owner"},
        {"role": "assistant", "content": "Let me.", "tool_calls": [call], "thinking_blocks": [thought]},
        {"role": "tool", "tool_call_id": "c1", "name": "list_dir", "content": "a b"},
    ]

    await codex.ask(rows, tools=[LIST_DIR], max_tokens=5)

    headers = codex.server.chats[0].headers
    assert headers["authorization"] == f"Bearer {codex.account.access_token}"
    assert (headers["chatgpt-account-id"], headers["originator"]) == (ACCOUNT_ID, "nanobot")
    assert codex.sent == {
        "model": "gpt-5.1-codex",
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"summary": "auto"},
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "instructions": "Be kind.",
        "tools": [{"type": "function", **LIST_DIR["function"], "strict": False}],
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look\n\n[now]"}]},
            {"summary": [], "type": "reasoning", "encrypted_content": encrypted("Hm.")},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me."}]},
            {"type": "function_call", "call_id": "c1", "name": "list_dir", "arguments": '{"path": "."}'},
            {"type": "function_call_output", "call_id": "c1", "output": "a b"},
        ],
    }


async def test_thoughts_go_back_as_they_came_and_each_request_is_the_head_of_the_next(codex):
    rows: list[ChatMessage] = [{"role": "system", "content": "Think."}]
    for turn in range(3):
        rows.append({"role": "user", "content": f"turn {turn}"})
        response = await codex.ask(rows, Calls(("list_dir", {"path": "."}), ids=[f"c{turn}"], reasoning=f"Hm {turn}."))
        rows += [row_of(response), result(f"c{turn}", "a b")]
        rows.append(row_of(await codex.ask(rows, Say("Two.", reasoning=f"So {turn}."))))

    thoughts = [item["encrypted_content"] for item in codex.sent["input"] if item["type"] == "reasoning"]
    assert thoughts == [encrypted(text) for text in ("Hm 0.", "So 0.", "Hm 1.", "So 1.", "Hm 2.")]
    assert codex.server.problems == []
    assert heads_of_each_other(codex.server)


@pytest.mark.parametrize(
    ("text", "block", "sent"),
    [
        ("hi", {"type": "thinking", "thinking": "hm", "signature": "s"}, ["message"] * 3),
        ("hi", {"type": "reasoning", "summary": []}, ["message"] * 3),
        ("hi", {"type": "redacted_thinking", "data": "x"}, ["message"] * 3),
        (None, {"type": "reasoning", "summary": [], "encrypted_content": encrypted("x")}, ["message"] * 2),  # alone
    ],
)
async def test_thoughts_of_other_models_and_those_that_led_to_nothing_stay_home(codex, text, block, sent):
    row: ChatMessage = {"role": "assistant", "content": text, "thinking_blocks": [block], "reasoning_content": "hm"}

    await codex.ask([*HELLO, row, *HELLO])

    assert [item["type"] for item in codex.sent["input"]] == sent


async def test_thoughts_that_this_account_cannot_open_are_left_out_from_then_on(codex):
    foreign = {"type": "reasoning", "summary": [], "encrypted_content": "of-another-account"}
    rows: list[ChatMessage] = [*HELLO, {"role": "assistant", "content": "hi", "thinking_blocks": [foreign]}, *HELLO]

    response = await codex.ask(rows, Say("ok", reasoning="Mine."))
    assert [item["type"] for item in codex.sent["input"]] == ["message"] * 3
    await codex.ask([*rows, row_of(response), *HELLO])

    assert [item.get("encrypted_content") for item in codex.sent["input"]][3] == encrypted("Mine.")
    assert len(codex.server.chats) == 3


async def test_pictures_go_out_with_a_message_and_with_a_result(codex, tmp_path):
    path = tmp_path / "dot.png"
    path.write_bytes(PIXEL)
    call = row_of(await codex.ask(None, Calls(("list_dir", {}), ids=["c1"])))
    user: ChatMessage = {"role": "user", "content": "look", "media": [str(path)]}
    shown = result("c1", "the picture", media=[str(path)])

    await codex.ask([user, call, shown], Say("a dot"))

    url = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    said, _, seen = codex.sent["input"]
    assert said["content"][1] == {"type": "input_image", "image_url": url}
    assert seen["output"] == [
        {"type": "input_text", "text": "the picture"},
        {"type": "input_image", "image_url": url},
    ]


async def test_a_session_has_a_cache_key_that_does_not_tell_whose_and_the_config_s_own_fields_win():
    own = {"extra_headers": {"originator": "mine"}, "extra_body": {"text": {"verbosity": "low"}}}
    with FakeAuthority() as server, call_context_scope(CallContext(session_key="telegram:4711-0815")):
        codex = Codex(server, **own, reasoning_effort="high")
        await codex.ask()
        await codex.provider.close()
        request = server.chats[0]

    assert "4711-0815" not in request.body.decode() + str(request.headers)
    assert request.json["prompt_cache_key"] == request.headers["session_id"]
    assert request.headers["originator"] == "mine"
    assert request.json["text"] == {"verbosity": "low"}
    assert request.json["reasoning"] == {"effort": "high", "summary": "auto"}


# Accounts.


async def test_a_refused_token_is_renewed_once_and_the_call_goes_on(codex):
    codex.server.end_tokens()

    response = await codex.ask(None, Say("here I am"))

    assert response.content == "here I am"
    assert codex.server.renewals == 1
    assert codex.server.chats[-1].headers["authorization"] != codex.server.chats[0].headers["authorization"]


async def test_every_request_that_was_sent_in_vain_is_told_and_what_it_taught_is_remembered():
    with FakeAuthority(unknown=["parallel_tool_calls"]) as server:
        codex = Codex(server)
        told: list[tuple[str, str]] = []
        codex.provider.on_fixup(lambda error, model, seconds: told.append((type(error).__name__, model)))
        server.end_tokens()

        await codex.ask()
        await codex.ask()

        await codex.provider.close()
        assert "parallel_tool_calls" not in codex.sent
        assert told == [("AuthenticationError", "gpt-5.1-codex"), ("InvalidRequestError", "gpt-5.1-codex")]
        assert len(server.chats) == 4


async def test_a_token_that_is_refused_again_is_a_login_to_be_done_anew(codex):
    codex.server.script(Fail(401, "no"), Fail(401, "no"))

    with pytest.raises(LoginNeededError, match="Run `nanobot provider login openai-codex`"):
        await codex.ask()

    assert len(codex.server.chats) == 2


async def test_a_login_that_has_ended_is_noted_until_somebody_logs_in_again(codex):
    assert codex.provider.notes() == []
    codex.server.revoke()
    with pytest.raises(LoginNeededError, match="nanobot provider login openai-codex") as refused:
        await codex.ask()
    assert not any(secret in str(refused.value) for secret in codex.account.secrets)
    (note,) = codex.provider.notes()
    assert note.startswith("The login to openai-codex has ended (Your refresh token was revoked). Run `nanobot ")

    codex.server.accounts.save(codex.server.openai_account())
    await codex.ask()

    assert codex.provider.notes() == []


# Failures.


BUSY = {"code": "rate_limit_exceeded", "message": "Please try again in 11.5s."}
DAMAGED = {
    "html": (Garbage(), MalformedResponseError),
    "cut json": (Garbage(b"{", "application/json"), StreamCutError),
    "no output": (Garbage(b"{}", "application/json"), MalformedResponseError),
    "cut": (CutStream(), StreamCutError),
    "ends early": (Raw([event("response.created", response={})]), MalformedResponseError),
    "empty": (Raw([event("response.completed", response={"output": []})]), MalformedResponseError),
    "no events": (Raw([b"data: not json\n\n", b"data: [1]\n\n"]), MalformedResponseError),
    "filtered": (Say("", finish="content_filter"), ContentFilteredError),
    "failed": (Raw([event("response.failed", response={"status": "failed", "error": BUSY})]), RateLimitedError),
    "error": (Raw([event("error", error=BUSY)]), RateLimitedError),
    "error itself": (Raw([event("error", **BUSY)]), RateLimitedError),
}


@pytest.mark.parametrize(("step", "kind"), DAMAGED.values(), ids=DAMAGED.keys())
async def test_failures_are_typed(codex, step, kind):
    with pytest.raises(kind) as failed:
        await codex.ask(None, step)

    assert kind is not RateLimitedError or failed.value.retry_after_s == 11.5


# What servers leave out.


DONE = event("response.completed", response={"id": "r", "usage": {"input_tokens": 1, "output_tokens": 2}})


CALL = {"id": "f", "type": "function_call", "call_id": "c"}


@pytest.mark.parametrize(
    ("events", "content", "calls"),
    [
        ([event("response.refusal.delta", delta="no", output_index=0)], "no", []),
        (  # no index, and the name comes last
            [
                event("response.output_item.added", item=CALL),
                event("response.function_call_arguments.delta", item_id="f", delta='{"a":1}'),
                event("response.output_item.done", item={**CALL, "name": "wait", "arguments": '{"a":1}'}),
            ],
            None,
            [("c", {"a": 1})],
        ),
        (  # two messages, a comment, and a kind that nobody knows
            [
                event("response.output_text.delta", delta="One.", output_index=0),
                b": ping\n\n",
                event("response.new_kind", x=1),
                event("response.output_text.delta", delta="Two.", output_index=1),
            ],
            "One.\n\nTwo.",
            [],
        ),
    ],
)
async def test_deltas_add_up_to_the_answer_however_a_server_refers_to_its_items(codex, events, content, calls):
    codex.server.script(Raw([*events, DONE]))

    deltas = [delta async for delta in codex.provider.chat_stream(HELLO, [LIST_DIR])]

    response = deltas[-1].response
    assert response.content == content
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == (content or "")
    assert [(call.id, call.arguments) for call in response.tool_calls] == calls


async def test_what_comes_twice_counts_once(codex):
    thought: dict[str, Any] = {"id": "rs", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    thought["encrypted_content"] = encrypted("Hm.")
    message = {"id": "msg", "type": "message", "content": [{"type": "output_text", "text": "Hi."}]}
    call = {"id": "fc", "type": "function_call", "call_id": "c", "name": "wait", "arguments": "{}"}
    whole = [{**thought, "status": "completed"}, message, {**call, "id": ""}]
    events = [
        event("response.reasoning_summary_text.delta", item_id="rs", delta="Hm."),
        event("response.output_item.done", item=thought),
        event("response.output_text.delta", item_id="msg", delta="Hi."),
        event("response.function_call_arguments.delta", item_id="fc", delta="{}"),
        event("response.output_item.done", item=call),
        event("response.completed", response={"output": whole}),
    ]

    response = await codex.ask(None, Raw(events))

    assert (response.content, response.reasoning_content) == ("Hi.", "Hm.")
    assert [(each.name, each.arguments_text) for each in response.tool_calls] == [("wait", "{}")]
    assert len(response.thinking_blocks or []) == 1


async def test_parts_of_a_summary_are_paragraphs(codex):
    about = {"output_index": 0, "item_id": "rs"}
    parts = [
        event("response.reasoning_summary_part.added", **about, summary_index=0),
        event("response.reasoning_summary_text.delta", **about, summary_index=0, delta="First."),
        event("response.reasoning_summary_part.added", **about, summary_index=1),
        event("response.reasoning_summary_text.delta", **about, summary_index=1, delta="Second."),
        event("response.output_text.delta", output_index=1, delta="Hi."),
    ]
    codex.server.script(Raw([*parts, DONE]))

    deltas = [delta async for delta in codex.provider.chat_stream(HELLO)]

    assert deltas[-1].response.reasoning_content == "First.\n\nSecond."
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == "First.\n\nSecond."


_STEPS = st.builds(
    lambda texts, reasoning, text: Calls(*(("wait", text) for text in texts), reasoning=reasoning, text=text),
    st.lists(st.sampled_from(["{}", '{"seconds": 1}', '{"seconds": "\u00e4"}']), max_size=3),
    st.sampled_from(["", "Hm.", "Let me think about it."]),
    st.sampled_from(["", "Yes.", "A longer answer, in pieces."]),
).filter(lambda step: bool(step.calls or step.text or step.reasoning))


@pytest.fixture(scope="module")
def one_server() -> Iterator[FakeAuthority]:
    with FakeAuthority() as server:
        yield server


@given(_STEPS, st.data())
def test_an_answer_is_the_same_wherever_it_was_cut_and_whatever_was_left_out(one_server, step, data):
    events = list(Responses(one_server).stream(step, {"model": "m"}))
    left_out = data.draw(
        st.sets(st.sampled_from([b"summary_part.added", b".delta", b"_item.added", b"_item.done"]), max_size=3)
    )
    kept = [event for event in events if not any(word in event.split(b"\n")[0] for word in left_out)]
    whole = b"".join(kept)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    chunks = [whole[start:end] for start, end in pairwise([0, *cuts, len(whole)]) if end > start]

    async def ask() -> LLMResponse:
        codex = Codex(one_server)
        try:
            return await codex.ask(None, Raw(chunks))
        finally:
            await codex.provider.close()

    response = asyncio.run(ask())

    assert (response.content or "", response.reasoning_content or "") == (step.text, step.reasoning)
    assert [call.arguments_text for call in response.tool_calls] == [text for _, text in step.calls]
    assert bool(response.thinking_blocks) == bool(step.reasoning)


# Any history.

_TEXT = st.text(max_size=12)
_IDS = st.sampled_from(["a", "b", "c" * 80, "d" * 80 + "e"])
_CALL = st.builds(
    lambda call_id, text: {"id": call_id, "type": "function", "function": {"name": "wait", "arguments": text}},
    _IDS,
    st.sampled_from(["{}", '{"a": 1}', "broken"]),
)
_THOUGHT = {"type": "reasoning", "encrypted_content": encrypted("x")}
_ROWS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": _TEXT})
    | st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": _TEXT},
        optional={"tool_calls": st.lists(_CALL, max_size=3), "thinking_blocks": st.just([_THOUGHT])},
    )
    | st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": _IDS, "content": _TEXT}),
    max_size=10,
)


@given(_ROWS)
def test_any_history_that_was_repaired_is_legal_here(rows):
    history = legalise([*copy.deepcopy(rows), {"role": "user", "content": "go on"}])

    instructions, items = build_input(history)

    body = {"instructions": instructions, "input": items, "store": False, "stream": True, "model": "m"}
    assert responses_problems(body) == []
