"""Ctrl+C and a polite kill, while a turn runs: the turn is stopped and what was said is kept."""

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

INTERRUPT = [signal.SIGINT]
KILLS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def exit_code_of(signal_number: int) -> int:
    """What a shell expects of a program that such a signal ended."""
    return 128 + signal_number


@contextmanager
def on_signals(signals: Sequence[signal.Signals], tell: Callable[[int], None]) -> Iterator[None]:
    """Hand these signals to `tell`, inside the running event loop. Only for the main thread.

    One that was ignored from the start stays so: nohup means it.
    """
    loop = asyncio.get_running_loop()

    def handle(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(tell, number)  # signal.signal, because Windows' loop takes no handlers

    ignored = {number for number in signals if signal.getsignal(number) is signal.SIG_IGN}
    before = {number: signal.signal(number, _ignore if number in ignored else handle) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Hear it and do nothing. What is truly ignored, commands inherit, and their children outlive them."""
