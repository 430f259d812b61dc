"""The SDK without asyncio."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nanobot.agent.events import TurnOutcome
from nanobot.sync import Nanobot
from nanobot.testing import Pause, ScriptedProvider


def test_a_bot_that_is_not_open_is_opened_for_the_runs_of_all_threads(tmp_path: Path):
    bot = Nanobot.local(model=ScriptedProvider(*["hi"] * 6), workspace=tmp_path)

    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(lambda number: bot.run("hi", session=f"s{number}"), range(6)))

    assert [result.text for result in results] == ["hi"] * 6
    assert [thread for thread in threading.enumerate() if "nanobot" in thread.name] == []


def test_leaving_the_loop_stops_the_turn():
    with Nanobot.local(model=ScriptedProvider(Pause("So far "))) as bot:
        stream = bot.stream("go")
        for event in stream:
            if event.delta:
                break
        result = stream.result()

    assert (result.outcome, result.text.strip()) == (TurnOutcome.STOPPED, "So far")


async def test_it_works_where_a_loop_runs_already():
    with Nanobot.local(model=ScriptedProvider("1", "2")) as bot:
        assert bot.run("count", output=int).output == 1
        assert [event.delta for event in bot.stream("on") if event.delta] == ["2"]


def test_a_run_is_stopped_from_another_thread():
    pause = Pause("So far ")
    with Nanobot.local(model=ScriptedProvider(pause)) as bot:
        begun = threading.Event()
        stopping = threading.Thread(target=lambda: (begun.wait(10), bot.stop("sdk:default")))
        stopping.start()

        result = bot.run("go", hooks=[lambda event: begun.set() if event.delta else None])

        stopping.join()

    assert result.outcome is TurnOutcome.STOPPED
