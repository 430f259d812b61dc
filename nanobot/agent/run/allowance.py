"""What the rows of a request may weigh: what the model takes, as far as we know, less what stands in every request.

We weigh in tokens of our own estimate. A model counts otherwise, and some take less than they are said to: what its
answers and its refusals teach stays with the session.
"""

from dataclasses import dataclass, replace

MOST_ROWS = 400
"""Below what a session reads of its end when it is opened, so that the window is in memory from then on."""
_AFTER_OVERFLOW = 0.6
"""What a request may weigh after one that was too long, where the model does not say what it takes."""
_LEAST_QUESTION = 512
"""Room for the rows that is left in any case."""
_SURE = 0.95
"""Of what a model says it takes: its tokens are not ours."""
_A_LITTLE_MORE = 1.1
_MOST_RATIO = 4.0
_LEAST_RATIO = 0.75
"""Some models do not count what was cached: we believe them only so far."""
_LEAST_WEIGHT = 500
"""Requests lighter than this teach nothing: what a server adds to each of them is too large a part."""
_REPLY_STEP = 256
"""In a small window the room for the reply is rounded: it is sent with each request, and should stay the same."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What requests taught us about a model: its tokens for one of our estimate, and a weight it did not take."""

    ratio: float = 1.0
    most: int | None = None
    """Requests must weigh no more than this, in tokens of our estimate."""
    window: int | None = None
    """What the model said it takes, where that is less than we knew; a little less, to be sure."""

    def answered(self, weight: int, counted: int) -> "Learned":
        """The same after the model said how many tokens a request of this weight was.

        It changes in steps, so that a session is not written anew for every request. What cannot be is not believed.
        """
        if weight < _LEAST_WEIGHT or not 0.5 <= counted / weight <= _MOST_RATIO:
            return self
        ratio = max(-(-counted * 20 // weight) / 20, _LEAST_RATIO)
        if self.ratio - 0.1 < ratio <= self.ratio:
            return self
        most = None if self.most is None else int(self.most * self.ratio / ratio)
        return replace(self, ratio=ratio, most=most)

    def refused(self, weight: int, fixed: int = 0, *, said: int | None = None, reply: int = 0) -> "Learned":
        """The same after the model refused a request of this weight as too long: the next ones stay at 60 % of it.

        What the fixed part needs is left in any case, with a little room for a question. `said` is what the model
        takes, where it told: the first time that is enough to know. `reply` is what it might have answered.
        """
        if said is not None and self.window is None:
            counted = min(_A_LITTLE_MORE * (said - reply) / max(weight, 1), _MOST_RATIO)  # it counts more than we do
            return replace(self, ratio=max(self.ratio, counted), window=int(said * _SURE))
        most = max(int(weight * _AFTER_OVERFLOW), fixed + _LEAST_QUESTION)
        return replace(self, most=most if self.most is None else min(most, self.most))


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the rows of a request may weigh, in tokens of our estimate, and how many they may be."""

    tokens: int
    rows: int = MOST_ROWS
    reply: int = 8192
    """What the model may be asked to answer at most, in its own tokens."""


def allowance_for(
    window_tokens: int, max_tokens: int, fixed: int, learned: Learned | None = None, rows: int = MOST_ROWS
) -> Allowance:
    """What is left for the rows beside the fixed part (system prompt and tools) and room for the reply.

    The reply never takes more than half of what the fixed part leaves, however small the window.
    """
    learned = learned or Learned()
    window_tokens = min(window_tokens, learned.window or window_tokens)
    reply = max(min(max_tokens, (window_tokens - fixed) // 2 // _REPLY_STEP * _REPLY_STEP), 1)
    room = int((window_tokens - reply) / learned.ratio)
    if learned.most is not None:
        reply = max(min(reply, learned.most // 2), 1)
        room = min(room, learned.most)
    return Allowance(room - fixed, rows, reply)
