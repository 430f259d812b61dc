"""Does an answer claim what no call did? Measured on answers written for it, half of them before the rules were.

`honest.jsonl`, `false.jsonl` and their mixed halves (turns in which commands and other calls ran) shaped the rules; the
held-out halves were written after them and shape nothing: what they get wrong stays wrong, so the figures stay true.
"""

import json
import os
import time
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.claims import (
    CallReceipt,
    claim_feedback,
    claim_note,
    find_claim,
    make_receipt,
    unsupported_claim,
)
from nanobot.agent.tools.base import Effect, Tool, ToolContext, Touches
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.bus.events import Address
from nanobot.messages.types import ChatMessage, FunctionCall, Origin, ToolFailure
from nanobot.utils.clock import FrozenClock

_TOUCHES = {
    "cron": Touches.JOB,
    "edit_file": Touches.FILE,
    "exec": Touches.COMMAND,
    "goal": Touches.NOTHING,
    "message": Touches.CHAT,
    "spawn": Touches.SUBAGENT,
    "write_file": Touches.FILE,
}
_READING = ("glob", "grep", "list_dir", "read_file", "session_search", "web_fetch", "web_search")
NOW = datetime(2026, 11, 23, 9).astimezone()


def tool(tool_name: str) -> Tool:
    class Named(Tool):
        name = tool_name
        description = "A tool."
        parameters: dict[str, Any] = {"type": "object", "properties": {}}  # noqa: RUF012
        effect = Effect.READ if tool_name in _READING else Effect.ONCE
        touches = _TOUCHES.get(tool_name, Touches.ANYTHING)

        async def execute(self) -> str:
            return ""

    return Named()


def registry(*more: str) -> ToolRegistry:
    tools = ToolRegistry()
    for name in (*_TOUCHES, *_READING, *more):
        tools.register(tool(name))
    return tools


TOOLS = registry()


def receipt(name: str, result: str = "", **arguments: object) -> CallReceipt:
    return make_receipt(arguments, result, TOOLS.get(name))


RAN = receipt("exec", command="make all")


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
        return unsupported_claim(self.answer, self.request, _receipts(self.called), _receipts(self.before))


def _receipts(calls: tuple[dict[str, Any], ...]) -> list[CallReceipt]:
    return [make_receipt(call["arguments"], call.get("result", ""), TOOLS.get(call["name"])) for call in calls]


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
    assert unsupported_claim(answer, request_, ()) == answer


ANNA = "I've sent the report to Anna on Telegram."
NOTES = "I've written the summary to notes.md."


@pytest.mark.parametrize(
    ("answer", "done", "supported"),
    [
        (ANNA, receipt("read_file", path="report.md"), False),
        (ANNA, receipt("message", content="hi", chat_id="@anna"), True),
        (ANNA, receipt("message", content="hi"), False),
        ("I've sent it to you here.", receipt("message", content="hi"), True),
        (ANNA, receipt("exec", command="make report"), False),
        (ANNA, receipt("exec", command="curl -F document=@report.pdf https://telegram.example"), True),
        (NOTES, receipt("write_file", path="docs/notes.md", content="x"), True),
        (NOTES, receipt("write_file", path="other.md", content="notes.md"), False),
        (NOTES, receipt("read_file", path="notes.md"), False),
        (NOTES, receipt("exec", command="cat notes.md | head"), False),
        (NOTES, receipt("exec", command="cat draft.md > notes.md"), True),
        (NOTES, receipt("exec", "wrote notes.md", command="./summarise"), True),
        (NOTES, receipt("exec", command="make all"), False),
        (NOTES, receipt("goal", action="report", done="notes.md"), False),
        ("I ran the tests: 3 passed.", receipt("exec", command="pytest -q"), True),
        ("I ran the tests: 3 passed.", receipt("exec", command="git status && ls"), False),
        ("I ran deploy.sh.", RAN, False),
        ("I ran deploy.sh.", receipt("exec", command="sh deploy.sh"), True),
        ("I've installed Node.js with the package manager.", receipt("exec", command="apt install nodejs"), True),
        ("I've set a reminder for nine.", receipt("cron", action="add", message="x"), True),
        ("I've set a reminder for nine.", receipt("cron", action="list"), False),
        ("I've set a reminder for nine.", RAN, False),
        ("I've set a reminder for nine.", receipt("write_file", path="HEARTBEAT.md"), True),
        ("I've started a subagent for it.", receipt("spawn", task="x"), True),
        ("I've started a subagent for it.", receipt("write_file", path="a.md"), False),
    ],
)
def test_claim_is_supported_only_by_a_call_that_touched_what_it_names(answer, done, supported):
    assert (unsupported_claim(answer, "do it", [done]) is None) is supported


def test_tool_of_somebody_elses_may_have_done_anything_but_to_another_file():
    done = [make_receipt({"to": "bob"}, "sent", tool("mcp_mail_send"))]

    assert unsupported_claim("I've sent the email to Bob.", "email Bob", done) is None
    assert unsupported_claim("I've created the file a.txt.", "create a.txt", done) is not None


def test_earlier_turns_support_an_answer_about_them_but_no_new_claim():
    answer = "I created notes.txt with three lines."
    wrote, read = receipt("write_file", path="notes.txt"), receipt("read_file", path="notes.txt")

    assert unsupported_claim(answer, "what did you do so far?", (), [wrote]) is None
    assert unsupported_claim(answer, "what did you do so far?", (), [read]) == answer
    assert unsupported_claim(answer, "create notes.txt with three lines", (), [wrote]) == answer


def context(folder: Path) -> ToolContext:
    return ToolContext("cli:direct", Address("cli", "direct"), "t", folder, FrozenClock(NOW))


@pytest.mark.parametrize(
    ("result", "answer", "supported"),
    [
        ("Subagent 1a2b3c4d: done.\n\nI wrote it.", "I have written the file report.txt for you.", True),
        ("Subagent 1a2b3c4d: done.\n\n写好了", "我已经把报告写到 report.txt 了。", True),
        ("Started a subagent: prices (1a2b3c4d).", "I have written the file report.txt for you.", False),
    ],
    ids=["it wrote", "in Chinese", "it has only begun"],
)
def test_subagent_that_reported_while_the_turn_waited_supports_an_answer(
    tmp_path: Path, result: str, answer: str, *, supported: bool
):
    rows: list[ChatMessage] = [
        {"role": "user", "content": "write a report and remind me at nine", "turn_id": "t"},
        {"role": "tool", "name": "spawn", "tool_call_id": "1", "content": result, "turn_id": "t"},
    ]

    claim, called = find_claim(answer, rows, TOOLS, context(tmp_path))

    assert ((claim is None), called) == (supported, frozenset({"spawn"}))


def test_report_of_a_subagent_supports_what_is_said_of_it_later(tmp_path: Path):
    rows: list[ChatMessage] = [
        {"role": "user", "content": "[A subagent has ended...", "origin": Origin.SUBAGENT, "turn_id": "before"},
        {"role": "user", "content": "what did you do so far?", "turn_id": "t"},
    ]
    answer = "I created notes.txt with three lines."

    assert find_claim(answer, rows, TOOLS, context(tmp_path))[0] is None
    assert find_claim(answer, rows[1:], TOOLS, context(tmp_path))[0] is not None


def test_promise_is_kept_by_what_runs_later():
    answer = "I'll look into the logs and get back to you."

    assert unsupported_claim(answer, "check the logs", [receipt("spawn", task="logs")]) is None
    assert unsupported_claim(answer, "check the logs", []) == answer


def test_without_any_tool_a_promise_is_only_talk_but_a_claim_is_still_false():
    assert unsupported_claim("Let me check the logs.", "check the logs", (), has_tools=False) is None
    assert unsupported_claim("I have deleted old.log.", "delete old.log", (), has_tools=False) is not None


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
    assert unsupported_claim(answer, "create notes.txt", ()) is None


def test_the_false_claim_in_a_long_answer_is_found():
    paragraphs = "The config has three sections. Each of them is read at start.\n\n" * 40
    answer = f"{paragraphs}I have also updated config.json for you.\n\n{paragraphs}"

    assert unsupported_claim(answer, "update config.json", ()) == "I have also updated config.json for you."


def command_turn(command: str, failure: ToolFailure | None = None) -> list[ChatMessage]:
    asked: ChatMessage = {"role": "user", "content": "do it", "turn_id": "t", "timestamp": "2026-11-23T09:00:00"}
    function: FunctionCall = {"name": "exec", "arguments": json.dumps({"command": command})}
    call: ChatMessage = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
        "turn_id": "t",
    }
    row: ChatMessage = {"role": "tool", "tool_call_id": "1", "name": "exec", "content": "", "turn_id": "t"}
    return [asked, call, row if failure is None else {**row, "failure": failure.value}]


@pytest.mark.parametrize(
    ("age_s", "supported"), [(0, True), (3600, False), (None, False)], ids=["new", "old", "not there"]
)
def test_file_that_a_command_wrote_is_seen_on_the_disk(tmp_path: Path, age_s: int | None, *, supported: bool):
    if age_s is not None:
        (tmp_path / "out.csv").write_text("1,2")
        os.utime(tmp_path / "out.csv", times=(NOW.timestamp() - age_s,) * 2)

    claim, _ = find_claim("I've created out.csv.", command_turn("python build.py"), TOOLS, context(tmp_path))

    assert (claim is None) is supported


def test_file_that_a_command_removed_is_missed_on_the_disk(tmp_path: Path):
    (tmp_path / "kept.log").touch()
    os.utime(tmp_path / "kept.log", times=(0, 0))
    rows = command_turn("./clean.sh")

    assert find_claim("I've deleted old.log.", rows, TOOLS, context(tmp_path))[0] is None
    assert find_claim("I've deleted kept.log.", rows, TOOLS, context(tmp_path))[0] is not None


@pytest.mark.parametrize(
    ("failure", "answer", "supported"),
    [
        (ToolFailure.ENDED_BADLY, "I ran the tests: one failed.", True),
        (ToolFailure.ENDED_BADLY, "I've written the results to out.csv.", False),
        (ToolFailure.NOT_RUN, "I ran the tests: one failed.", False),
        (ToolFailure.NOT_DONE, "I ran the tests: one failed.", False),
        (ToolFailure.UNKNOWN, "I ran the tests: one failed.", True),
    ],
)
def test_failed_call_supports_that_it_ran_but_no_file(
    tmp_path: Path, failure: ToolFailure, answer: str, *, supported: bool
):
    claim, _ = find_claim(answer, command_turn("pytest -o out.csv", failure), TOOLS, context(tmp_path))

    assert (claim is None) is supported


def test_the_model_is_told_what_it_said_and_what_it_has():
    text = claim_feedback("I have sent it.", ["exec", "message"])

    assert '"I have sent it."' in text
    assert "has not happened" in text
    assert text.endswith("Your tools: exec, message.")


def test_the_line_for_the_person_is_true_and_in_the_language_of_the_answer():
    assert claim_note("I have sent it.", ()) == "(No action was executed in this turn.)"
    assert claim_note("已经发送了。", ()) == "（本轮没有执行任何操作。）"
    assert "only used grep, read_file;" in claim_note("I have sent it.", {"read_file", "grep"})
    assert "只用了 read_file" in claim_note("已经发送了。", ["read_file"])


@given(st.text(max_size=300), st.text(max_size=100))
def test_any_text_can_be_judged(answer, request_):
    claim = unsupported_claim(answer, request_, ())

    assert claim is None or claim.strip()


_PIECES = st.sampled_from(
    ["I've ", "created ", "我", "已经", "把", "将", "给你", "发送", "了", "，", "a.b", "/a", "`", '"', "。"]
)


@given(st.lists(_PIECES, max_size=40), st.integers(1, 400))
def test_no_text_takes_long_to_judge(pieces, times):
    text = "".join(pieces) * times
    started = time.process_time()

    unsupported_claim(text, text, ())

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
