"""The chat with a model that does what the last message says. Run as a child process in a pseudo-terminal."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from nanobot.bus.events import OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.cli.chat.session import ChatSession
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.gateway.control.backend import LocalBackend
from nanobot.messages.types import text_of
from nanobot.providers.base import Delta, Finished, LLMProvider, LLMResponse, TextDelta, ToolCallRequest
from nanobot.runtime.build import build_runtime


class Obedient(LLMProvider):
    """say N: N words, slowly. hang: some words, then silence. list: a tool. And so on, as below."""

    bus: MessageBus

    def get_default_model(self) -> str:
        return "obedient"

    async def chat_stream(self, messages, tools=None, model=None, max_tokens=0, temperature=0) -> AsyncIterator[Delta]:
        last = text_of(messages[-1]["content"])
        words = last.split()
        if messages[-1]["role"] == "tool":
            text = "The tool has **spoken**."
        elif words[0] == "say":
            text = " ".join(f"word{number}" for number in range(int(words[1])))
        elif words[0] == "wide":
            text = "漢字と言葉。" * 40 + "終わり"
        elif words[0] == "hang":
            yield TextDelta("Half a sentence and")
            await asyncio.Event().wait()
        elif words[0] == "list":
            call = ToolCallRequest("c1", "list_dir", {"path": "."})
            yield Finished(LLMResponse(None, [call], "tool_calls"))
            return
        elif words[0] == "work":
            call = ToolCallRequest("c1", "exec", {"command": "sleep 1; echo worked"})
            yield Finished(LLMResponse(None, [call], "tool_calls"))
            return
        elif words[0] == "ask":
            call = ToolCallRequest("c1", "write_file", {"path": str(Path.cwd() / "outside.txt"), "content": "x"})
            yield Finished(LLMResponse(None, [call], "tool_calls"))
            return
        elif words[0] == "think":
            await asyncio.sleep(1)
            text = "I have thought."
        elif words[0] == "print":
            print("a stray line")
            text = "Printed."
        elif words[0] == "post":
            self.bus.post_outbound(OutboundMessage("cli", "direct", "A word from elsewhere."))
            text = "Posted."
        else:
            said = last.split("<runtime")[0].split("[Runtime")[0].strip()
            text = f"You said {json.dumps(said)}." if len(said) < 1000 else f"You said {len(said)} characters."
        text += "".join(f" With {Path(path).name}." for path in messages[-1].get("media", []))
        for piece in text.split(" "):
            yield TextDelta(piece + " ")
            await asyncio.sleep(0.01)
        yield Finished(LLMResponse(text, usage={"prompt_tokens": 2000, "completion_tokens": 50, "cached_tokens": 1000}))


async def main(home: Path) -> int:
    model = Obedient()
    async with build_runtime(Config(), data_dir=home, workspace=home / "workspace", provider=model) as runtime:
        model.bus = runtime.bus
        return await ChatSession(LocalBackend(runtime), "cli:direct", DataPaths(home).cli_history, markdown=True).run()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]))))
