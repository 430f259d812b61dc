"""The figures of the bottom line: the model, tokens in and out with the share that was cached, the window, the cost."""

from nanobot.agent.turn import RunStarted, StepEnded, TurnEvent
from nanobot.usage.types import dollars


class Meter:
    """A sink that adds up what this sitting has used."""

    def __init__(self) -> None:
        self.model = ""
        self.window_tokens = 0
        self._sent = 0
        self._cached = 0
        self._received = 0
        self._in_window = 0
        self._cost_usd = 0.0

    def __call__(self, event: TurnEvent) -> None:
        """Add what a step has used."""
        if isinstance(event, RunStarted):
            self.model = event.model
        elif isinstance(event, StepEnded):
            sent, received = event.usage.get("prompt_tokens", 0), event.usage.get("completion_tokens", 0)
            self._sent += sent
            self._received += received
            self._cached += event.usage.get("cached_tokens", 0)
            self._in_window = sent + received or self._in_window
            self._cost_usd += event.cost_usd or 0.0

    def forget_window(self) -> None:
        """A fresh session begins: its window is empty."""
        self._in_window = 0

    def line(self) -> str:
        """The bottom line; figures that are not known are left out."""
        parts = [self.model]
        if self._sent or self._received:
            cached = f" ({self._cached / self._sent:.0%} cached)" if self._cached and self._sent else ""
            parts += [f"{short(self._sent)} in{cached}", f"{short(self._received)} out"]
        if self._in_window and self.window_tokens:
            parts.append(f"{self._in_window / self.window_tokens:.0%} of {short(self.window_tokens)} window")
        if self._cost_usd:
            parts.append(dollars(self._cost_usd))
        return " · ".join(part for part in parts if part)


def short(tokens: int) -> str:
    """A number of tokens in at most four characters or so: 950, 12.3k, 1.2M."""
    if tokens < 1000:
        return str(tokens)
    thousands = tokens / 1000
    if thousands < 999.5:
        return f"{thousands:.1f}k" if thousands < 99.95 else f"{thousands:.0f}k"
    return f"{thousands / 1000:.1f}M"
