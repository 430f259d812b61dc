"""A client of the local socket goes on where its turn broke off when the gateway was killed: the same text, once."""

import asyncio
import json
from pathlib import Path

from nanobot import Nanobot
from nanobot.config.paths import use_config
from nanobot.testing.model_server import Calls, FakeModels, Hang, Say
from tests.support.home import POSIX
from tests.support.toy_gateway import GatewayHome

pytestmark = POSIX


async def test_a_program_reads_the_same_text_once_although_the_gateway_is_killed(tmp_path: Path):
    with FakeModels() as server:
        home = GatewayHome(tmp_path, server)
        use_config(home.data / "config.json")
        server.script(Calls(("list_dir", {"path": "."}), text="I look."), Hang(after="The answer is "))
        text, types = "", []
        with home.gateway() as first:
            async with Nanobot.connect() as bot:
                stream = bot.stream("what is it?")
                events = aiter(stream)
                async for event in events:
                    text += event.delta
                    types.append(event.type)
                    if text.endswith("The answer is "):
                        break
                first.kill()
                server.script(Say("forty-two."))
                opening = home.gateway()
                await asyncio.to_thread(opening.__enter__)
                try:
                    async for event in events:
                        text += event.delta
                        types.append(event.type)
                    result = await stream.result()
                finally:
                    opening.__exit__(None, None, None)

    assert text == "I look.The answer is forty-two."
    assert result.text == "The answer is forty-two."
    assert result.tools_used == ["list_dir"]
    assert len(server.chats) == 3
    for name in ("run", "step", "text", "tool"):
        assert types.count(f"{name}_started") == types.count(f"{name}_ended")


def test_a_single_message_at_the_terminal_is_answered_once_although_the_gateway_is_killed(tmp_path: Path):
    with FakeModels() as server:
        home = GatewayHome(tmp_path, server)
        server.script(Hang(after="The answer is "))
        with home.gateway() as first:
            command = home.start("agent", "--json", "-m", "what is it?")
            assert command.stdout is not None
            lines = []
            for line in command.stdout:
                lines.append(json.loads(line))
                if "".join(one.get("text", "") for one in lines if one["type"] == "text_delta") == "The answer is ":
                    break
            first.kill()
        server.script(Say("forty-two."))
        with home.gateway():
            lines += map(json.loads, command.communicate(timeout=30)[0].splitlines())

    assert "".join(one["text"] for one in lines if one["type"] == "text_delta") == "The answer is forty-two."
    assert lines[-1]["text"] == "The answer is forty-two."
    assert [one["seq"] for one in lines] == [*range(len(lines))]
    assert len(server.chats) == 2
