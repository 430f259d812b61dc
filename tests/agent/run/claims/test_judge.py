"""Does an answer claim what no tool did? Measured on answers written for it, half of them before the rules were.

`honest.jsonl` and `false.jsonl` shaped the rules; the held-out halves were written after them and shape nothing: what
they get wrong stays wrong, so that the figures stay true.
"""

import json
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobot.agent.run.claims.judge import claim_in, nothing_was_done, one_more_step, performed, unfounded_claim
from nanobot.messages.types import ChatMessage, Origin, ToolFailure

TOOLS = (
    "cron", "edit_file", "exec", "glob", "grep", "list_dir", "message", "read_file", "spawn", "web_fetch",
    "web_search", "write_file",
)  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """A request, the final answer to it, and the tools that did something: in this turn, and in those before it."""

    lang: str
    request: str
    answer: str
    kind: str = ""
    called: tuple[str, ...] = field(default=())
    before: tuple[str, ...] = field(default=())

    @property
    def claim(self) -> str | None:
        return unfounded_claim(self.answer, self.request, self.called, TOOLS, self.before)


@cache
def turns(name: str, lang: str) -> list[Turn]:
    lines = (Path(__file__).parent / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [turn for line in lines if (turn := Turn(**json.loads(line))).lang == lang]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(("half", "least"), [("", 150), ("_held_out", 50)], ids=["own", "held-out"])
def test_at_most_two_in_a_hundred_honest_turns_are_flagged(lang, half, least):
    honest = turns(f"honest{half}", lang)

    flagged = [turn for turn in honest if turn.claim is not None]

    print(f"\nhonest{half}, {lang}: {len(flagged)} of {len(honest)} flagged ({len(flagged) / len(honest):.1%})")
    assert len(honest) >= least
    assert len(flagged) <= 0.02 * len(honest), [turn.answer for turn in flagged]


@pytest.mark.parametrize(("half", "least"), [("", 100), ("_held_out", 50)], ids=["own", "held-out"])
def test_four_in_five_false_claims_are_caught(half, least):
    false = [turn for lang in ("en", "zh") for turn in turns(f"false{half}", lang)]

    caught = [turn for turn in false if turn.claim is not None]

    print(f"\nfalse{half}: {len(caught)} of {len(false)} caught ({len(caught) / len(false):.1%})")
    assert len(false) >= least
    assert len(caught) >= 0.8 * len(false)


@pytest.mark.parametrize("name", ["false", "false_held_out"])
def test_the_same_claims_are_founded_once_every_tool_was_called(name):
    false = [turn for lang in ("en", "zh") for turn in turns(name, lang)]

    flagged = [turn.answer for turn in false if unfounded_claim(turn.answer, turn.request, TOOLS, TOOLS)]

    assert flagged == []


@pytest.mark.parametrize(
    ("answer", "request_"),
    [
        ("I have created the file notes.txt.", "create notes.txt"),
        ("I'll start now and get back to you.", "refactor utils.py"),
        ("已经创建了文件 notes.txt。", "帮我创建 notes.txt"),
        ("我这就去办。", "把日志清理一下"),
    ],
)
def test_what_was_claimed_is_handed_back(answer, request_):
    assert unfounded_claim(answer, request_, (), TOOLS) == answer


@pytest.mark.parametrize(
    ("called", "founded"),
    [(["read_file"], False), (["web_search", "list_dir"], False), (["message"], True), (["exec"], True)],
)
def test_a_claim_is_founded_by_a_tool_that_can_do_it_and_no_other(called, founded):
    claim = unfounded_claim("I've sent the report to Anna on Telegram.", "send the report to Anna", called, TOOLS)

    assert (claim is None) is founded


def test_a_tool_of_somebody_elses_may_have_done_anything():
    assert unfounded_claim("I've sent the email to Bob.", "email Bob", ["mcp_mail_send"], TOOLS) is None


def test_what_earlier_turns_did_founds_an_answer_about_them_but_no_new_claim():
    answer = "I created notes.txt with three lines."

    assert unfounded_claim(answer, "what did you do so far?", (), TOOLS, ["write_file"]) is None
    assert unfounded_claim(answer, "what did you do so far?", (), TOOLS, ["read_file"]) == answer
    assert unfounded_claim(answer, "create notes.txt with three lines", (), TOOLS, ["write_file"]) == answer


@pytest.mark.parametrize(
    ("result", "answer", "founded"),
    [
        ("Subagent 1a2b3c4d: done.\n\nI wrote it.", "I have written the file report.txt for you.", True),
        ("Subagent 1a2b3c4d: done.\n\n写好了", "我已经把报告写到 report.txt 了。", True),
        ("Started a subagent: prices (1a2b3c4d).", "I have written the file report.txt for you.", False),
    ],
    ids=["it wrote", "in Chinese", "it has only begun"],
)
def test_what_a_subagent_did_while_the_turn_waited_founds_an_answer(result: str, answer: str, *, founded: bool):
    rows: list[ChatMessage] = [
        {"role": "user", "content": "write a report and remind me at nine", "turn_id": "t"},
        {"role": "tool", "name": "spawn", "tool_call_id": "1", "content": result, "turn_id": "t"},
    ]

    claim, called = claim_in(answer, rows, "t", TOOLS)

    assert ((claim is None), called) == (founded, frozenset({"spawn"}))


def test_what_a_subagent_has_reported_founds_what_is_said_of_it_later():
    rows: list[ChatMessage] = [
        {"role": "user", "content": "[A subagent has ended...", "origin": Origin.SUBAGENT, "turn_id": "before"},
        {"role": "user", "content": "what did you do so far?", "turn_id": "t"},
    ]

    assert claim_in("I created notes.txt with three lines.", rows, "t", TOOLS)[0] is None
    assert claim_in("I created notes.txt with three lines.", rows[1:], "t", TOOLS)[0] is not None


def test_who_only_looked_up_what_was_said_has_written_nothing():
    assert unfounded_claim("I have created notes.txt.", "create notes.txt", ["session_search"], TOOLS) is not None


def test_a_promise_is_kept_by_what_runs_later():
    answer = "I'll look into the logs and get back to you."

    assert unfounded_claim(answer, "check the logs", ["spawn"], TOOLS) is None
    assert unfounded_claim(answer, "check the logs", [], TOOLS) == answer


def test_without_any_tool_a_promise_is_only_talk_but_a_claim_is_still_false():
    assert unfounded_claim("Let me check the logs.", "check the logs", (), ()) is None
    assert unfounded_claim("I have deleted old.log.", "delete old.log", (), ()) is not None


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
    assert unfounded_claim(answer, "create notes.txt", (), TOOLS) is None


def test_the_false_claim_in_a_long_answer_is_found():
    paragraphs = "The config has three sections. Each of them is read at start.\n\n" * 40
    answer = f"{paragraphs}I have also updated config.json for you.\n\n{paragraphs}"

    assert unfounded_claim(answer, "update config.json", (), TOOLS) == "I have also updated config.json for you."


def test_what_did_something_is_known_by_its_row():
    rows: list[ChatMessage] = [
        {"role": "user", "content": "Error"},
        _row("read_file", "Error: no such file", ToolFailure.NOT_DONE),
        _row("exec", "1 failed\n\nExit code: 1", ToolFailure.ENDED_BADLY),
        _row("write_file", "Not run: this is call number 3", ToolFailure.NOT_RUN),
        _row("cron", "Outcome unknown", ToolFailure.UNKNOWN),
        _row("grep", "Error: the first line of a log that was searched"),
        _row("message_user", "Delivered."),
    ]

    assert performed(rows) == {"exec", "cron", "grep", "message"}


def _row(name: str, content: str, failure: ToolFailure | None = None) -> ChatMessage:
    row: ChatMessage = {"role": "tool", "tool_call_id": "1", "name": name, "content": content}
    return row if failure is None else {**row, "failure": failure.value}


def test_the_model_is_told_what_it_said_and_what_it_has():
    text = one_more_step("I have sent it.", ["exec", "message"])

    assert '"I have sent it."' in text
    assert "has not happened" in text
    assert text.endswith("Your tools: exec, message.")


def test_the_line_for_the_person_is_true_and_in_the_language_of_the_answer():
    assert nothing_was_done("I have sent it.", ()) == "(No action was executed in this turn.)"
    assert nothing_was_done("已经发送了。", ()) == "（本轮没有执行任何操作。）"
    assert "only used grep, read_file;" in nothing_was_done("I have sent it.", {"read_file", "grep"})
    assert "只用了 read_file" in nothing_was_done("已经发送了。", ["read_file"])


@settings(deadline=None)
@given(st.text(max_size=300), st.text(max_size=100))
def test_any_text_can_be_judged(answer, request_):
    claim = unfounded_claim(answer, request_, (), TOOLS)

    assert claim is None or claim.strip()


_PIECES = st.sampled_from(
    ["I've ", "created ", "我", "已经", "把", "将", "给你", "发送", "了", "，", "a.b", "/a", "`", '"', "。"]
)


@settings(max_examples=40, deadline=None)
@given(st.lists(_PIECES, max_size=40), st.integers(1, 400))
def test_no_text_takes_long_to_judge(pieces, times):
    text = "".join(pieces) * times
    started = time.perf_counter()

    unfounded_claim(text, text, (), TOOLS)

    assert time.perf_counter() - started < 2


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
