"""Answers are put together the same from whatever shape a server gives them."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.providers.base import Finished, LLMResponse, ReasoningDelta, TextDelta
from nanobot.providers.endpoint import Endpoint
from nanobot.providers.errors import ModelCallError
from nanobot.providers.wire.chat import ChatReader, ThinkSplitter
from nanobot.providers.wire.stream import SseParser, normal_usage


def split(pieces: list[str]) -> tuple[str, str]:
    splitter = ThinkSplitter()
    deltas = [delta for piece in pieces for delta in splitter.feed(piece)] + splitter.end()
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    return "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)), text


@pytest.mark.parametrize(
    ("written", "thought", "text"),
    [
        ("<think>hm</think>\n\nhi", "hm", "hi"),
        ("\n<think>\nhm\n</think>hi", "hm\n", "hi"),
        ("<thinking>a</thinking><think>b</think>c", "ab", "c"),
        ("<think>never closed", "never closed", ""),
        ("The tag <think> is </think> used", "", "The tag <think> is </think> used"),
        ("<thin", "", "<thin"),
        ("<b>x</b>", "", "<b>x</b>"),
    ],
)
def test_thinking_in_tags_before_the_answer_is_taken_out(written, thought, text):
    assert split([written]) == (thought, text)
    assert split(list(written)) == (thought, text)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<thinking>", "\n", "a", "<", "/", " "])).map("".join))
def test_any_cut_gives_the_same_thinking(written):
    assert split(list(written)) == split([written])


def whole(*chunks: dict[str, object]) -> LLMResponse:
    reader = ChatReader(Endpoint("custom", "http://x"), "m")
    for chunk in chunks:
        reader.read_event(chunk)
    reader.done = True
    finished = reader.read_end()[-1]
    assert isinstance(finished, Finished)
    return finished.response


def chunk(finish: str | None = None, **delta: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(name: str | None = None, arguments: object = None, **more: object) -> dict[str, object]:
    return {**more, "function": {"name": name, "arguments": arguments}}


A_CALL = [("list_dir", {"path": "."})]


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk(tool_calls=[call("list_dir", '{"path": "."}', index=0, id="a")]), chunk("stop")],
        [chunk("tool_calls", tool_calls=[call("list_dir", {"path": "."})])],
        [chunk(tool_calls=[call("list_dir", "", id="a")]), chunk(tool_calls=[call(None, '{"path": "."}')])],
        [
            chunk(tool_calls=[call("list_dir", None, id="", index=0)]),
            chunk(tool_calls=[call("", '{"path":"."}', index=0)]),
        ],
        [
            chunk(function_call={"name": "list_dir", "arguments": '{"pa'}),
            chunk(function_call={"arguments": 'th": "."}'}),
        ],
        [{"choices": [{"message": {"tool_calls": [call("list_dir", '{"path": "."}')]}, "finish_reason": "stop"}]}],
        [chunk(tool_calls=[call("list_dir", "{'path': '.',}", index=0, id="a")])],
    ],
)
def test_calls_are_read_in_every_shape_that_servers_were_seen_to_send(chunks):
    response = whole(*chunks)

    assert [(one.name, one.arguments) for one in response.tool_calls] == A_CALL
    assert response.finish_reason == "tool_calls"
    assert response.tool_calls[0].id


@pytest.mark.parametrize(
    "calls",
    [
        [call("a", "{}", index=0, id="x"), call("b", "{}", index=1, id="x")],
        [call("a", "{}", index=0, id="x"), call("b", "{}", index=0, id="y")],
        [call("a", "{}"), call("b", "{}")],
        [call("a", "{}", id=""), call("b", "{}", id="")],
    ],
)
def test_two_calls_stay_two_with_ids_of_their_own(calls):
    response = whole(*[chunk(tool_calls=[one]) for one in calls])

    assert [one.name for one in response.tool_calls] == ["a", "b"]
    assert len({one.id for one in response.tool_calls}) == 2


def test_arguments_that_are_no_json_object_are_a_problem_and_not_a_call():
    response = whole(chunk(tool_calls=[call("list_dir", "[1, 2]", index=0, id="a")]))

    assert response.tool_calls[0].problem


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_under_its_several_names(field):
    assert whole(chunk(**{field: "hm"}), chunk("stop", content="hi")).reasoning_content == "hm"


def counts(prompt: int, completion: int, cached: int = 0, **more: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "cached_tokens": cached, **more}


@pytest.mark.parametrize(
    ("usage", "found"),
    [
        (  # OpenAI: reasoning is part of what was said
            {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150,
             "prompt_tokens_details": {"cached_tokens": 64}, "completion_tokens_details": {"reasoning_tokens": 30}},
            counts(100, 50, 64, reasoning_tokens=30),
        ),
        (  # others count it beside: their total tells
            {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 150,
             "completion_tokens_details": {"reasoning_tokens": 30}},
            counts(100, 50, reasoning_tokens=30),
        ),
        (  # OpenAI's newer API
            {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, "total_tokens": 150,
             "output_tokens": 50, "output_tokens_details": {"reasoning_tokens": 30}},
            counts(100, 50, 64, reasoning_tokens=30),
        ),
        (  # Anthropic in its own words: what a cache held stands beside what was sent
            {"input_tokens": 10, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 10, "output_tokens": 5},
            counts(100, 5, 80, cache_written_tokens=10),
        ),
        (  # the same through LiteLLM, which adds it up
            {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 80},
             "cache_read_input_tokens": 80, "cache_creation_input_tokens": 10},
            counts(100, 5, 80, cache_written_tokens=10),
        ),
        ({"prompt_tokens": 100, "completion_tokens": 5, "prompt_cache_hit_tokens": 64}, counts(100, 5, 64)),  # DeepSeek
        (counts(9, 3, 4) | {"prompt_tokens_details": None}, counts(9, 3, 4)),
        (counts(10, 5, 99), counts(10, 5, 10)),
        ({"prompt_tokens": "many", "completion_tokens": None}, {}),
        ({"prompt_tokens": float("inf"), "completion_tokens": float("nan"), "cached_tokens": -3}, {}),
    ],
)  # fmt: skip
def test_every_kind_of_token_is_found_in_whatever_words(usage, found):
    assert normal_usage(usage) == found


NAMES = [
    *("choices", "index", "delta", "message", "content", "tool_calls", "function", "name", "id", "arguments", "usage"),
    *("finish_reason", "reasoning", "text", "thinking", "function_call"),
]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(NAMES),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_no_json_object_makes_it_raise_anything_but_errors_of_ours(value):
    with suppress(ModelCallError):
        whole({"choices": value}, {"choices": [{"delta": value}]}, {"choices": [value], "usage": value})


STREAM = (
    b"\xef\xbb\xbf: a comment\r\n\r\n"
    b'data: {"a": 1}\r\n\r\n'
    b"event: message\ndata:no space\n\n"
    b"data: first\ndata: second\r\n\r\nid: 7\nretry: 10\n\n"
    b"garbage without a colon\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [b'{"a": 1}', b"no space", b"first\nsecond", b"[DONE]"]


def events_of(chunks: list[bytes]) -> list[bytes]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)] + parser.end()


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cut_of_a_stream_gives_the_same_events(cuts):
    places = [0, *sorted(cuts), len(STREAM)]

    events = events_of([STREAM[a:b] for a, b in pairwise(places)])

    assert events == EVENTS


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_no_bytes_at_all_make_it_raise(chunks):
    events_of(chunks)


def test_an_event_that_the_server_did_not_end_is_read_at_the_end():
    assert events_of([b"data: last"]) == [b"last"]
