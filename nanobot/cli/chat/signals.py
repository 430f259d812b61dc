"""Handling Ctrl+C and termination signals in an event loop."""

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

INTERRUPT_SIGNALS = [signal.SIGINT]
TERMINATION_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def exit_code_for(signal_number: int) -> int:
    """The shell's exit code for a process ended by this signal."""
    return 128 + signal_number


@contextmanager
def handle_signals(signals: Sequence[signal.Signals], on_signal: Callable[[int], object]) -> Iterator[None]:
    """Call `on_signal` in the running event loop for these signals. Main thread only.

    A signal that is ignored already (nohup) stays ignored.
    """
    loop = asyncio.get_running_loop()

    def handle(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(on_signal, number)  # Windows' event loop has no signal handlers

    ignored = {number for number in signals if signal.getsignal(number) is signal.SIG_IGN}
    previous = {number: signal.signal(number, _ignore if number in ignored else handle) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignore the signal with a handler: SIG_IGN would be inherited by child processes."""
