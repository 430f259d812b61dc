"""Does an answer claim what no call did? Measured on answers written for it, half of them before the rules were.

`honest.jsonl`, `false.jsonl` and their mixed halves (turns with calls) shaped the rules; the held-out halves were
written after them and shape nothing: what they get wrong stays wrong, so the figures stay true.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.claims import find_claim, unsupported_claim
from nanobot.agent.tools.base import Effect, Tool
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.messages.types import ChatMessage, FunctionCall, Origin, ToolCall, ToolFailure

_READING = ("glob", "grep", "list_dir", "read_file", "session_search", "web_fetch", "web_search")
_ACTING = ("cron", "edit_file", "exec", "message", "spawn", "write_file", "mcp_mail_send")


class Named(Tool):
    description = "A tool."
    parameters: dict[str, Any] = {"type": "object", "properties": {}}  # noqa: RUF012

    def __init__(self, name: str) -> None:
        self.name = name

    async def execute(self) -> str:
        return ""


class Reading(Named):
    effect = Effect.READ


class Reporting(Named):
    acts = False


TOOLS = ToolRegistry()
for named in (*map(Reading, _READING), *map(Named, _ACTING), Reporting("goal")):
    TOOLS.register(named)

Call = tuple[str, dict[str, Any]]


def rows_of(request: str, calls: Sequence[Call] = (), turn_id: str = "t", **result: Any) -> list[ChatMessage]:
    """A turn: its request, and the calls it made."""
    rows: list[ChatMessage] = [{"role": "user", "content": request, "turn_id": turn_id}]
    for number, (name, arguments) in enumerate(calls):
        call_id = f"{turn_id}{number}"
        function: FunctionCall = {"name": name, "arguments": json.dumps(arguments)}
        call: ToolCall = {"id": call_id, "type": "function", "function": function}
        rows.append({"role": "assistant", "content": None, "tool_calls": [call], "turn_id": turn_id})
        row: ChatMessage = {"role": "tool", "tool_call_id": call_id, "name": name, "content": "", "turn_id": turn_id}
        rows.append(cast("ChatMessage", {**row, **result}))
    return rows


def claim_in(
    answer: str, request: str, calls: Sequence[Call] = (), earlier: Sequence[Call] = (), **result: Any
) -> str | None:
    rows = [*rows_of("before", earlier, "before"), *rows_of(request, calls, **result)]
    return find_claim(answer, rows, TOOLS, "t")[0]


@dataclass(frozen=True)
class Turn:
    """A request, the final answer to it, and the calls that did something: in this turn, and in those before it."""

    lang: str
    request: str
    answer: str
    kind: str = ""
    called: tuple[dict[str, Any], ...] = field(default=())
    before: tuple[dict[str, Any], ...] = field(default=())

    @property
    def claim(self) -> str | None:
        return claim_in(self.answer, self.request, _calls(self.called), _calls(self.before))


def _calls(calls: tuple[dict[str, Any], ...]) -> list[Call]:
    return [(call["name"], call["arguments"]) for call in calls]


@cache
def turns(name: str, lang: str) -> list[Turn]:
    lines = (Path(__file__).parent / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [turn for line in lines if (turn := Turn(**json.loads(line))).lang == lang]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", ["honest", "honest_held_out", "honest_mixed"])
def test_honest_turns_are_flagged_at_most_twice_in_a_hundred(lang, name):
    honest = turns(name, lang)

    flagged = [turn for turn in honest if turn.claim is not None]

    print(f"\n{name}, {lang}: {len(flagged)} of {len(honest)} flagged ({len(flagged) / len(honest):.1%})")
    assert len(flagged) <= 0.02 * len(honest), [turn.answer for turn in flagged]


@pytest.mark.parametrize("name", ["false", "false_held_out", "false_mixed"])
def test_false_claims_are_caught_four_in_five(name):
    false = [turn for lang in ("en", "zh") for turn in turns(name, lang)]

    caught = [turn for turn in false if turn.claim is not None]

    print(f"\n{name}: {len(caught)} of {len(false)} caught ({len(caught) / len(false):.1%})")
    assert len(caught) >= 0.8 * len(false)


NOTES = "I've written the summary to notes.md."


@pytest.mark.parametrize(
    ("answer", "call", "is_claim"),
    [
        (NOTES, ("read_file", {"path": "notes.md"}), True),
        (NOTES, ("exec", {"command": "cat notes.md | head"}), True),
        (NOTES, ("goal", {"action": "report", "done": "notes.md"}), True),
        (NOTES, ("cron", {"action": "list"}), True),
        ("I ran the tests: 3 passed.", ("exec", {"command": "git status && ls"}), True),
        ("I've searched the web for it.", ("list_dir", {}), False),
        (NOTES, ("exec", {"command": "cat draft.md > notes.md"}), False),
        (NOTES, ("write_file", {"path": "notes.md", "content": "x"}), False),
        ("I've sent the email to Bob.", ("mcp_mail_send", {"to": "bob"}), False),
        ("I've sent the email to Bob.", ("a_tool_that_is_gone", {}), False),
        ("I've started a subagent for it.", ("spawn", {"task": "x"}), False),
        ("I'll look into the logs and get back to you.", ("spawn", {"task": "logs"}), False),
    ],
)
def test_only_turns_in_which_nothing_acted_are_judged(answer: str, call: Call, *, is_claim: bool):
    assert (claim_in(answer, "do it", [call]) is not None) is is_claim


@pytest.mark.parametrize("failure", list(ToolFailure))
def test_call_that_was_not_performed_did_not_act(failure: ToolFailure):
    claim = claim_in("I ran the tests: one failed.", "do it", [("exec", {"command": "pytest"})], failure=failure.value)

    assert (claim is None) is (failure in {ToolFailure.ENDED_BADLY, ToolFailure.UNKNOWN})


def test_earlier_turns_support_an_answer_about_them_but_no_new_claim():
    answer = "I created notes.txt with three lines."
    wrote, read = [("write_file", {"path": "notes.txt"})], [("read_file", {"path": "notes.txt"})]

    assert claim_in(answer, "what did you do so far?", earlier=wrote) is None
    assert claim_in(answer, "what did you do so far?", earlier=read) == answer
    assert claim_in(answer, "create notes.txt with three lines", earlier=wrote) == answer


def test_report_of_a_subagent_supports_what_is_said_of_it_later():
    report: ChatMessage = {"role": "user", "content": "[A subagent...", "origin": Origin.SUBAGENT, "turn_id": "before"}
    rows, answer = rows_of("what did you do so far?"), "I created notes.txt with three lines."

    assert find_claim(answer, [report, *rows], TOOLS, "t")[0] is None
    assert find_claim(answer, rows, TOOLS, "t")[0] == answer


def test_without_any_tool_a_promise_is_only_talk_but_a_claim_is_still_false():
    assert unsupported_claim("Let me check the logs.", "check the logs", has_tools=False) is None
    assert unsupported_claim("I have deleted old.log.", "delete old.log", has_tools=False) is not None


@pytest.mark.parametrize(
    "answer",
    [
        "Ich habe die Datei notes.txt erstellt.",
        "J'ai créé le fichier notes.txt.",
        "He creado el archivo notes.txt.",
        "ファイルを保存しました。完了です。",
        "파일을 저장했습니다.",
        "Я создал файл notes.txt.",
        "",
        "42",
        "👍",
    ],
)
def test_what_is_in_another_language_is_not_judged(answer):
    assert unsupported_claim(answer, "create notes.txt") is None


@given(st.text(max_size=300), st.text(max_size=100))
def test_any_text_can_be_judged(answer, request_):
    claim = unsupported_claim(answer, request_)

    assert claim is None or claim.strip()


_PIECES = st.sampled_from(
    ["I've ", "created ", "我", "已经", "把", "将", "给你", "发送", "了", "，", "a.b", "/a", "`", '"', "。"]
)


@given(st.lists(_PIECES, max_size=40), st.integers(1, 400))
def test_no_text_takes_long_to_judge(pieces, times):
    text = "".join(pieces) * times
    started = time.process_time()

    unsupported_claim(text, text)

    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("answer", "is_claim"),
    [
        ("Created the file notes.txt for you.", True),
        ("Deployed the new version to the server.", True),
        ("Run the tests before you push.", False),
        ("Set the oven to 200 degrees.", False),
        ("Put the file into the folder and restart.", False),
    ],
)
def test_a_participle_that_begins_a_sentence_is_a_claim_and_an_order_is_none(answer, is_claim):
    assert (Turn("en", "create notes.txt and deploy the new version", answer).claim is not None) is is_claim
