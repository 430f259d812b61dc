"""What of a history goes into a request: within the allowance, steady between events, and the right things first."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobot.agent.window.fit import Fitted, History, RequestRoom, TokenBudget, fit, token_budget
from nanobot.agent.window.shrink import RowCache, shrink_row, stub_for
from nanobot.agent.window.state import Calibration, Window
from nanobot.errors import RequestTooLongError
from nanobot.messages.repair import legalise
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage, text_of
from nanobot.providers.base import ToolCallRequest
from nanobot.testing.protocol_rules import anthropic_problems, openai_problems
from tests.support.histories import Rows, asks, histories, latest_words, step, turn, words


def said(fitted: Fitted) -> str:
    return "\n".join(text_of(row["content"]) for row in legalise(fitted.rows))


def session(turns: int, *sizes: int) -> Rows:
    return [row for number in range(turns) for row in turn(number, *sizes)]


# --- as long as there is room


def test_a_history_that_fits_is_whole():
    history = session(10, 500)

    fitted = fit(History(history), Window(), TokenBudget(100_000))

    assert fitted.rows == history
    assert fitted.window == Window()


# --- what goes first


def test_first_the_old_results_shrink_to_head_tail_and_a_word_on_how_to_see_them_again():
    history = [*session(12, 8_000), asks("next", "z")]

    fitted = fit(History(history), Window(), TokenBudget(24_000))

    results = [text_of(row["content"]) for row in fitted.rows if row["role"] == "tool"]
    assert [len(text) > 8_000 for text in results] == [False] * 6 + [True] * 6
    assert results[0].startswith("result t0.0.0")
    assert results[0].endswith(words(8_000)[-50:])
    assert "repeat the call" in results[0]


def test_then_old_turns_leave_but_the_last_six_stay():
    history = [row for number in range(20) for row in [*turn(number)[:-1], *long_answer(number)]]
    history.append(asks("next", "z"))

    fitted = fit(History(history), Window(), TokenBudget(10_000))

    assert "question 14" in said(fitted)
    assert "question 0" not in said(fitted)
    assert fitted.tokens <= 6_000


def long_answer(number: int) -> Rows:
    return [{"role": "assistant", "content": words(2_000), "turn_id": f"t{number}"}]


def test_a_huge_message_of_an_earlier_turn_shrinks_before_the_others_leave():
    """One that was refused as too long stays in the session; it must not drive everything else out."""
    history = [*session(4), asks("huge " + words(200_000), "big"), asks("next", "z")]

    fitted = fit(History(history), Window(), TokenBudget(5_000))

    assert all(f"question {number}" in said(fitted) for number in range(4))
    assert "huge plum" in said(fitted)


def test_old_steps_of_the_running_turn_leave_whole_and_the_model_is_told_which():
    history = [asks("do it all", "z")]
    for number in range(60):
        history += step(f"z{number}", "z", 300, arguments=json.dumps({"note": words(600)}), tool="exec")

    fitted = fit(History(history), Window(), TokenBudget(4_000))

    legal = legalise(fitted.rows)
    assert text_of(legal[0]["content"]).startswith("do it all\n\n[")
    assert "earlier steps of this turn left out to make room: exec x" in text_of(legal[0]["content"])
    assert legal[-1] == history[-1]
    assert openai_problems(legal) == anthropic_problems(legal) == []


def test_commands_are_not_shown_and_weigh_nothing():
    command: Any = {"role": "user", "content": "/status " + words(9000), "_command": True}

    fitted = fit(History([*turn(0), command, asks("and?", "t1")]), Window(), TokenBudget(500))

    assert [row["content"] for row in fitted.rows] == ["question 0", "answer 0", "and?"]


def test_long_arguments_of_old_steps_stay_legal_json():
    arguments = json.dumps({"path": "a.py", "content": words(20_000)})
    history = [asks("write", "z")]
    for number in range(8):
        history += step(f"z{number}", "z", 20, arguments=arguments, tool="write_file")

    fitted = fit(History(history), Window(), TokenBudget(35_000))

    found = [json.loads(call["function"]["arguments"]) for row in fitted.rows for call in row.get("tool_calls", [])]
    assert found[0]["path"] == "a.py"
    assert len(found[0]["content"]) < 1_000
    assert found[-1]["content"] == words(20_000)


def test_the_message_to_answer_is_sent_whole_whatever_the_state_says():
    history = [*session(2, 100), asks(words(20_000), "z"), *step("z", "z", 3_000)]

    fitted = fit(History(history), Window(condensed=99, shrunk=99), TokenBudget(100_000))

    assert words(20_000) in said(fitted)
    assert len(text_of(fitted.rows[-1]["content"])) <= 700


def test_pictures_of_old_rows_become_words():
    picture: Any = [{"type": "image_url", "image_url": {"url": "/a.png"}}]
    history: Rows = [
        asks("look\n[image: /b.png]", "p", media=["/b.png"]),
        *step("p", "p", 10),
        *session(7),
        asks("next", "z"),
    ]
    history[2]["content"] = picture

    fitted = fit(History(history), Window(), TokenBudget(3_000))

    assert "media" not in fitted.rows[0]
    assert fitted.rows[0]["content"] == "look\n[image: /b.png]"
    assert fitted.rows[2]["content"] == "[image: /a.png]"


def test_a_shrunk_result_still_names_the_file_that_holds_all_of_it():
    history: Rows = [asks("run", "p"), *step("p", "p", 10, tool="exec"), *session(7), asks("next", "z")]
    spilled = "All 2.0 MB are in /home/me/w/.nanobot/spill/t1-1.txt; grep shows more of it."
    history[2]["content"] = words(7_000) + f"\n[9 characters left out. {spilled}]\n" + words(7_000)

    fitted = fit(History(history), Window(), TokenBudget(3_000))

    assert "more of it is in /home/me/w/.nanobot/spill/t1-1.txt]" in text_of(fitted.rows[2]["content"])
    assert len(text_of(fitted.rows[2]["content"])) <= 700


# --- rows


def test_too_many_rows_let_old_turns_leave_without_shrinking_anything():
    history = [*session(200, 900), asks("next", "z")]

    fitted = fit(History(history), Window(), TokenBudget(10_000_000, rows=400))

    assert len(fitted.rows) <= 240
    assert fitted.rows == history[-len(fitted.rows) :]


# --- how often


def grow(history: Rows, allowance: TokenBudget, sizes: list[int]) -> tuple[int, Window]:
    """Run so many steps; how many events there were."""
    window, events = Window(), 0
    cache = RowCache()
    for number, size in enumerate(sizes):
        fitted = fit(History(history, cache), window, allowance)
        events += fitted.window != window
        window = fitted.window
        assert fitted.tokens <= allowance.tokens
        history += step(f"z{number}", "z", size)
    return events, window


@settings(max_examples=settings().max_examples // 4)
@given(st.lists(st.integers(0, 5_000), min_size=60, max_size=60), st.integers(4_000, 30_000))
def test_events_are_bounded_by_what_was_added(sizes: list[int], tokens: int):
    history = [*session(7, 1_000), asks("go", "z")]

    events, _ = grow(history, TokenBudget(tokens), sizes)

    added = sum(size / 3 + 60 for size in sizes)
    assert events <= 3 + added / (0.1 * tokens)


# --- any history, any allowance


@given(histories(), st.integers(300, 30_000))
def test_any_request_is_legal_within_the_allowance_and_holds_the_latest_words(history: Rows, tokens: int):
    try:
        fitted = fit(History(history), Window(), TokenBudget(tokens))
    except RequestTooLongError as error:
        assert error.tokens > tokens - 120  # the note about what was left out needs its place too
        return

    legal = legalise(fitted.rows)
    assert openai_problems(legal) == anthropic_problems(legal) == []
    assert estimate_tokens(legal) <= tokens
    assert latest_words(history) in said(fitted)
    again = fit(
        History(history), Window.from_json(json.loads(json.dumps(fitted.window.to_json()))), TokenBudget(tokens)
    )
    assert (again.rows, again.window) == (fitted.rows, fitted.window)


@given(histories(), st.integers(300, 30_000))
def test_the_last_six_turns_are_there_while_they_fit(history: Rows, tokens: int):
    begins = [at for at, row in enumerate(history) if text_of(row["content"]).startswith("question")]
    six = begins[-7:][0]
    smallest = Window(start=six, condensed=begins[-1], shrunk=len(history))
    if estimate_tokens(History(history).show(smallest)) > 0.85 * tokens:
        return

    fitted = fit(History(history), Window(), TokenBudget(tokens))

    kept = [row["content"] for row in fitted.rows if row["role"] != "tool"]
    wanted = [row["content"] for row in history[six:] if row["role"] != "tool"]
    assert kept[-len(wanted) :] == wanted


@settings(max_examples=settings().max_examples // 4)
@given(histories(most_turns=25), st.integers(800, 12_000), st.randoms())
def test_between_events_each_request_is_the_head_of_the_next_also_over_restarts(
    history: Rows, tokens: int, random: Any
):
    window, before = Window(), list[ChatMessage]()
    cache = RowCache()
    for end in asked_at(history):
        if random.random() < 0.2:
            window, cache = Window.from_json(json.loads(json.dumps(window.to_json()))), RowCache()
        try:
            fitted = fit(History(history[:end], cache), window, TokenBudget(tokens))
        except RequestTooLongError:
            return
        now = legalise(fitted.rows)
        if fitted.window == window and before:
            assert now[: len(before) - 1] == before[:-1]
            assert text_of(now[len(before) - 1]["content"]).startswith(text_of(before[-1]["content"]))
        window, before = fitted.window, now


def asked_at(history: Rows) -> list[int]:
    """Where a model is asked: behind a person's words, and behind the last result of a step."""
    after = [*history[1:], None]
    ends = zip(history, after, strict=True)
    return [
        at + 1
        for at, (row, following) in enumerate(ends)
        if row["role"] != "assistant" and (following is None or following["role"] == "assistant")
    ]


@given(histories(), st.integers(0, 80), st.integers(0, 80), st.integers(300, 30_000))
def test_a_state_that_does_not_belong_to_the_history_does_no_harm(history: Rows, start: int, resumed: int, tokens: int):
    odd = Window(start, resumed, condensed=resumed, shrunk=start, clipped=60)

    try:
        fitted = fit(History(history), odd, TokenBudget(tokens))
    except RequestTooLongError:
        return

    legal = legalise(fitted.rows)
    assert openai_problems(legal) == anthropic_problems(legal) == []
    assert latest_words(history) in said(fitted)


# --- the state


@pytest.mark.parametrize(
    "found",
    [None, 5, [], {"start": -1}, {"start": "a", "shrunk": 7}, {"shrunk": [[5, 2, 3, 0], [1]]},
     {"learned": {"m": {"ratio": 0}}}, {"learned": [1]}, {"resumed": "x", "learned": {"m": None}}],
)  # fmt: skip
def test_a_damaged_state_is_the_state_of_nothing_done(found: object):
    assert Window.from_json(found) == Window()


numbers = st.integers(0, 9_999)
windows = st.builds(
    Window, numbers, numbers, numbers, numbers, numbers, numbers,
    st.dictionaries(
        st.text(), st.builds(Calibration, st.floats(0.75, 4), st.none() | st.integers(1, 10**6)), max_size=3
    ),
)  # fmt: skip


@given(windows, st.integers(0, 1_000))
def test_a_state_survives_json_and_a_move_there_and_back(window: Window, by: int):
    assert Window.from_json(json.loads(json.dumps(window.to_json()))) == window
    assert window.shifted(by).shifted(-by) == window


# --- the allowance, and what models teach


@pytest.mark.parametrize("window", [4_096, 8_192, 32_768, 200_000])
def test_the_parts_of_a_request_never_add_up_to_more_than_the_window(window: int):
    allowance = token_budget(RequestRoom("m", window, 8_192), 3_000, Calibration())

    assert 3_000 + allowance.tokens + allowance.reply <= window
    assert allowance.tokens > 0
    assert allowance.reply <= 8_192


# --- rows made smaller, and words in place of what can be read above


TEXT = words(3_000)


def read(path: str = "a", **more: Any) -> ToolCallRequest:
    return ToolCallRequest("new", "read_file", {"path": path, **more})


def shown(content: Any = TEXT, arguments: str = '{"path": "a"}', tool: str = "read_file") -> Rows:
    rows = [asks("read it", "t"), *step("one", "t", 0, arguments=arguments, tool=tool)]
    rows[-1] = {**rows[-1], "content": content}
    return rows


@pytest.mark.parametrize(
    "above",
    [
        shown(TEXT + "changed"),
        shown(arguments='{"path": "b"}'),
        shown(tool="grep"),
        shown("Unchanged since read_file returned it above; read it there."),
        shown([{"type": "text", "text": TEXT}]),
        [],
    ],
    ids=["changed", "other arguments", "other tool", "only a stub", "blocks", "left the window"],
)
def test_a_result_is_shown_whole_unless_it_stands_above_as_it_is(above: Rows):
    assert stub_for(read(), TEXT, shown()) is not None
    assert stub_for(read(), TEXT, above) is None


@pytest.mark.parametrize(
    "row",
    [
        {"role": "tool"},
        {"role": "tool", "content": 5, "name": None},
        {"role": "tool", "content": [3, {"type": "image_url"}, {"type": "text"}]},
        {"role": "assistant", "tool_calls": 5},
        {"role": "assistant", "tool_calls": [1, {"function": 2}, {"function": {"arguments": "{" * 2_000}}]},
        {"role": "user", "content": None, "media": 7},
        {"role": "user", "content": [{}], "media": [None]},
        {"role": "odd"},
    ],
)
def test_odd_rows_raise_nothing(row: Any):
    for is_over in (False, True):
        small: ChatMessage = shrink_row(row, 700, is_over=is_over)
        assert small["role"] == row["role"]


def test_what_a_model_thought_goes_with_the_turns_that_are_over_and_stays_while_one_runs():
    row: ChatMessage = {**step("a", "t", 0)[0], "reasoning_content": "hm", "thinking_blocks": [{"thinking": "hm"}]}

    over = shrink_row(row, 700, is_over=True)
    running = shrink_row(row, 700, is_over=False)

    assert over == step("a", "t", 0)[0]
    assert running is row


def test_dense_text_is_weighed_by_what_the_model_said_of_the_last_request():
    learned = Calibration().after_response(10_000, 17_900)

    assert learned.ratio == pytest.approx(1.8)
    assert token_budget(RequestRoom("m", 100_000, 10_240), 0, learned).tokens == int(89_760 / 1.8)
