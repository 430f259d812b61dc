"""Signals: one that was ignored from the start stays unheard, and yet no command inherits that."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from nanobot.cli.chat.signals import TERMINATION_SIGNALS, handle_signals

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")
ASK = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"


async def test_what_nohup_means_holds_for_us_and_not_for_our_commands():
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handle_signals(TERMINATION_SIGNALS, heard.append):
            os.kill(os.getpid(), signal.SIGHUP)
            child = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", ASK], capture_output=True, text=True)
        after = signal.getsignal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)

    assert heard == []
    assert child.stdout == "False\n"
    assert after is signal.SIG_IGN
