"""Programs whose lives are killed again and again: how they are run, and the model that answers in them."""

import asyncio
import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from nanobot.bus.queue import MessageBus
from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import Delta, Finished, LLMProvider, LLMResponse
from tests.support.home import told


def killed(program: str, homes: Path, rounds: int, seed: int) -> dict[str, object]:
    """What `tests.crash.<program>` found in so many rounds."""
    found: dict[str, object] = json.loads(told(f"tests.crash.{program}", str(homes), str(rounds), str(seed)))
    return found


class FittingModel(LLMProvider):
    """Says what fits what it is shown, so that it can be killed anywhere."""

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        await asyncio.sleep(0.01)
        answer = self.answer(messages)
        yield Finished(LLMResponse(answer) if isinstance(answer, str) else answer)

    def get_default_model(self) -> str:
        return "m"

    @abstractmethod
    def answer(self, messages: Sequence[ChatMessage]) -> str | LLMResponse:
        """What fits."""


def sweep(
    live: Callable[[Path, bool], Coroutine[Any, Any, None]],
    look: Callable[[Path], list[str]],
    longest_s: float,
    *,
    has_begun: Callable[[Path], bool] = lambda home: True,
) -> None:
    """`PROGRAM HOMES ROUNDS SEED`: kill lives in fresh homes and print what was wrong with each.

    `live(home, is_last)` is one life; the last one of a home ends by itself. A life is killed at a random moment up to
    `longest_s` after `has_begun`. One process imports everything once and forks the lives.
    """
    homes, rounds, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    with tempfile.TemporaryDirectory() as warm:  # what a life loads is loaded once
        asyncio.run(live(Path(warm), True))
    gc.freeze()
    kills, problems = 0, []
    for number in range(rounds):
        home = homes / str(number)
        home.mkdir()
        deaths = chance.randrange(1, 4)
        for death in range(deaths + 1):
            is_last = death == deaths
            child = os.fork()
            if not child:
                status: Any = 9
                try:
                    asyncio.run(asyncio.wait_for(live(home, is_last), 20))
                    status = 0
                finally:
                    os._exit(status)
            if not is_last:
                until = time.monotonic() + 2.0
                while not has_begun(home) and time.monotonic() < until:
                    time.sleep(0.002)
                time.sleep(chance.uniform(0, longest_s))
                os.kill(child, signal.SIGKILL)
                kills += 1
            _, ended = os.waitpid(child, 0)
            if is_last and ended != 0:
                problems.append(f"round {number}: the last life ended with {ended}")
        problems += [f"round {number}: {one}" for one in look(home)]
    print(json.dumps({"kills": kills, "problems": problems[:20]}))


async def send(bus: MessageBus, sent: Path, on_the_way: list[str]) -> None:
    """A platform: what it has is on the disk."""
    while (message := await bus.consume_outbound()) is not None:
        on_the_way.append(message.content)
        await bus.record_sending(message)
        with sent.open("a", encoding="utf-8") as file:
            file.write(json.dumps([message.turn_id, message.content]) + "\n")
        await bus.record_sent(message, ("1",))
        on_the_way.clear()
