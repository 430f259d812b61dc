"""A toy platform as a plugin: messages in are files of a folder, messages out are lines of another file."""

import asyncio
import json
import threading
from pathlib import Path

from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import ChannelSetupError, UndeliverableError
from nanobot.channels.incoming import Incoming

IMPORTED_IN = threading.current_thread()


class ToyChannel(BaseChannel):
    name = "toy"
    stall_s = 0

    @property
    def folder(self):
        return Path(self.config["folder"])

    async def start(self):
        if self.config.get("token") == "wrong":
            raise ChannelSetupError("the toy's token is wrong. Set channels.toy.token.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.mark_up()
        while True:
            if (self.folder / "cut").exists():
                raise ConnectionError("the line was cut")
            for file in sorted(self.folder.glob("*.json")):
                told = json.loads(file.read_text())
                group = told["group"]
                sender, chat, text = told["from"], told["chat"], told["text"]
                await self.receive(Incoming(sender, chat, text, file.stem, is_private=not group, is_mentioned=group))
                file.unlink()
            await asyncio.sleep(0.01)

    async def stop(self):
        pass

    async def chat_with(self, sender_id):
        return sender_id.replace("person", "own")

    async def send(self, message):
        if message.chat_id == "nowhere" or message.chat_id.startswith("user"):
            raise UndeliverableError("there is no such chat")
        out = self.folder / "sent.jsonl"
        line = {"chat": message.chat_id, "text": message.content, "kind": message.kind, "reply_to": message.reply_to}
        with open(out, "a") as file:
            file.write(json.dumps(line) + "\n")
        return (str(out.stat().st_size),)


class PlushChannel(ToyChannel):
    name = "plush"


class BrokenChannel(ToyChannel):
    name = "broken"

    def __init__(self, config, bus):
        raise RuntimeError("this toy falls apart")
