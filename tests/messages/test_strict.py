"""The judges of histories refuse what the real servers refuse; else a green test would prove nothing."""

from typing import Any

import pytest

from nanobot.testing.protocol_rules import anthropic_problem, anthropic_problems, openai_problem, openai_problems

USER = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "hi"}


def call(call_id: str = "a", arguments: object = "{}", name: str = "list_dir") -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls: dict[str, object]) -> dict[str, object]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(call_id: str = "a", content: object = "done") -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


LEGAL = [{"role": "system", "content": "s"}, USER, asks(call("a"), call("b")), result("a"), result("b"), USER, ANSWER]


def test_a_legal_history_has_no_problem():
    assert openai_problems(LEGAL) == anthropic_problems(LEGAL) == []
    assert openai_problem({"model": "m", "messages": LEGAL}) is None


@pytest.mark.parametrize(
    "history",
    [
        [USER, asks(call()), USER],
        [USER, asks(call())],
        [USER, asks(call("a"), call("b")), result("a")],
        [USER, result()],
        [USER, asks(call()), result(), result()],
        [USER, asks(call("a"), call("a")), result("a"), result("a")],
    ],
)
def test_a_call_without_its_one_result_is_refused_by_both(history):
    assert openai_problems(history) != []
    assert anthropic_problems(history) != []


@pytest.mark.parametrize(
    "history",
    [
        [{"role": "function", "content": "x"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "video"}]}],
        [{"role": "user", "content": "\ud800"}],
        [USER, {"role": "assistant", "content": "x", "tool_calls": []}],
        [USER, asks(call(arguments="[1]")), result()],
        [USER, asks(call(arguments="{")), result()],
        [USER, asks(call(arguments={})), result()],
        [USER, asks(call(name="a b")), result()],
    ],
)
def test_openai_refuses(history):
    assert openai_problems(history) != []


@pytest.mark.parametrize(
    "history",
    [
        [ANSWER],
        [USER, USER],
        [USER, ANSWER, ANSWER],
        [USER, {"role": "system", "content": "s"}, ANSWER],
        [{"role": "user", "content": " "}],
        [USER, asks(call()), result(content="")],
        [USER, asks(call("a"), call("b")), result("b"), result("a")],
        [USER, asks(call()), result(), ANSWER, USER, asks(call()), result()],
    ],
)
def test_anthropic_refuses(history):
    assert anthropic_problems(history) != []


def test_a_request_may_hold_no_field_of_ours():
    row = {**USER, "turn_id": "t"}

    assert openai_problems([row]) == anthropic_problems([row]) == []
    assert "turn_id" in (openai_problem({"model": "m", "messages": [row]}) or "")
    assert "turn_id" in (anthropic_problem({"max_tokens": 1, "messages": [row]}) or "")


def test_what_only_a_wire_refuses_is_no_matter_of_a_history():
    used = {"type": "tool_use", "id": "list_dir:0", "name": "list_dir", "input": {}}
    done = {"type": "tool_result", "tool_use_id": "list_dir:0", "content": "x"}
    rows: list[dict[str, Any]] = [USER, {"role": "assistant", "content": [used]}, {"role": "user", "content": [done]}]
    signed = {**call(), "extra_content": {}}
    thinking = {"thinking": {"type": "enabled"}}

    assert "should match pattern" in str(anthropic_problem({"max_tokens": 1, "messages": rows}))
    assert "extra_content" in str(openai_problem({"model": "m", "messages": [USER, asks(signed), result()]}))
    used["id"] = done["tool_use_id"] = "a"
    assert "Expected `thinking`" in str(anthropic_problem({"max_tokens": 1, "messages": rows, **thinking}))
    rows += [ANSWER, USER]
    assert anthropic_problem({"max_tokens": 1, "messages": rows, **thinking}) is None
    assert openai_problem({"model": "gemini-3", "messages": [USER, asks(signed), result()]}) is None
