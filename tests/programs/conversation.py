"""Talk to a bot whose sessions are consolidated while it talks, without end. Arguments: the home, the first number."""

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

from nanobot.config.schema import Config
from nanobot.providers.base import LLMProvider, LLMResponse, ToolCallRequest
from nanobot.runtime.build import build_runtime
from nanobot.testing import Bot


class QuestionRecorder(LLMProvider):
    """Answers; for `save_memory` it saves the number of each question it was shown."""

    def get_default_model(self) -> str:
        return "recorder"

    async def chat(self, messages: Any, tools: Any = None, *args: Any, **kwargs: Any) -> LLMResponse:
        if [tool["function"]["name"] for tool in tools or ()] != ["save_memory"]:
            return LLMResponse("Fine.")
        shown = re.findall(r"question (\d+)", messages[1]["content"].partition("<conversation>")[2])
        kept = {"history_entry": f"Heard {' '.join(shown)}.", "memory_update": f"- Knows of {shown[-1]}."}
        return LLMResponse(None, [ToolCallRequest("1", "save_memory", kept)])


async def main(home: Path, number: int) -> None:
    config = Config.model_validate({"agents": {"defaults": {"memoryWindow": 16}}})
    model: Any = QuestionRecorder()
    async with build_runtime(
        config, data_dir=home, workspace=home / "workspace", provider=model, environ={}
    ) as runtime:
        runtime.memory.consolidation.pause_s = 0.002
        bot = Bot(runtime, model)
        while True:
            await bot.say(f"question {number}")
            os.write(1, b"%d\n" % number)
            number += 1
            if number % 40 == 0:
                await bot.say("/new")


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
