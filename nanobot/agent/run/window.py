"""What of a history goes into a request: pure arithmetic over messages, the same answer for the same history.

A window that slides a little at every turn would move the prompt prefix at every turn, and a provider could never cache
it. So the start jumps: when a turn no longer fits, whole turns leave until half of the budget is free, and the start
stays there until that half is used up. The walk is over the history from its first row, so no state is kept.
"""

from collections.abc import Sequence

from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage, is_our_word


def fit(history: Sequence[ChatMessage], budget_tokens: int, budget_messages: int) -> list[ChatMessage]:
    """The newest whole turns of `history` that fit both budgets; the last turn always, even if it does not.

    `history` holds no system row. Appending rows keeps the start where it is until a budget is used up.
    """
    turns = _turns(history)
    weights = [estimate_tokens(turn) for turn in turns]
    first = tokens = messages = 0
    for index, turn in enumerate(turns):
        tokens += weights[index]
        messages += len(turn)
        if tokens <= budget_tokens and messages <= budget_messages:
            continue
        while first < index and (tokens > budget_tokens // 2 or messages > budget_messages // 2):
            tokens -= weights[first]
            messages -= len(turns[first])
            first += 1
    return [row for turn in turns[first:] for row in turn]


def _turns(history: Sequence[ChatMessage]) -> list[list[ChatMessage]]:
    """Rows by turn: a turn begins at a user row that a person or a job wrote, not at a word of ours to the model."""
    turns: list[list[ChatMessage]] = []
    for row in history:
        begins = row["role"] == "user" and not is_our_word(row)
        if begins or not turns:
            turns.append([])
        turns[-1].append(row)
    return turns
