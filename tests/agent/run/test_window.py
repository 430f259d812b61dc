"""What of a history goes into a request."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.run.window import fit
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage


def turns(sizes: list[int]) -> list[ChatMessage]:
    rows: list[ChatMessage] = []
    for number, size in enumerate(sizes):
        rows.append({"role": "user", "content": f"{number} " + "x" * size})
        rows.append({"role": "assistant", "content": "ok"})
    return rows


def test_a_history_that_fits_is_whole():
    history = turns([10, 20, 30])

    assert fit(history, 1000, 100) == history


def test_our_own_words_to_the_model_do_not_begin_a_turn():
    nudge: ChatMessage = {"role": "user", "content": "go on", "origin": "system"}
    history = [*turns([4000]), *turns([10]), nudge, *turns([])]

    assert fit(history, 500, 100) == history[2:]


@given(st.lists(st.integers(0, 4000), min_size=1, max_size=40), st.integers(50, 5000), st.integers(2, 60))
def test_what_is_left_fits_or_is_the_last_turn_alone(sizes: list[int], tokens: int, messages: int):
    history = turns(sizes)

    kept = fit(history, tokens, messages)

    assert kept == history[-len(kept) :]
    assert kept[0]["role"] == "user"
    assert len(kept) == 2 or (estimate_tokens(kept) <= tokens and len(kept) <= messages)


@given(st.lists(st.integers(0, 400), min_size=5, max_size=60), st.integers(400, 3000))
def test_the_start_moves_seldom(sizes: list[int], tokens: int):
    history = turns(sizes)

    starts = [len(history[: 2 * n]) - len(fit(history[: 2 * n], tokens, 1000)) for n in range(1, len(sizes) + 1)]

    assert starts == sorted(starts)
    jumps = [(n, start) for n, start in enumerate(starts) if n and start != starts[n - 1]]
    for (n, _), (later, _) in pairwise(jumps):
        assert estimate_tokens(history[2 * n + 2 : 2 * later + 2]) + 8 >= tokens // 2 - 200
