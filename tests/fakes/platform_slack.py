"""Slack for the contract suite: a workspace on loopback, to which the channel is pointed by `apiBase`."""

from itertools import count
from pathlib import Path
from typing import Any

from nanobot.bus.queue import MessageBus
from nanobot.channels.slack import SlackChannel
from nanobot.config.channels import SlackConfig
from nanobot.testing.platform import Shown
from tests.fakes.served import ServedPlatform
from tests.fakes.slack import (
    ANNA,
    APP_TOKEN,
    BOT,
    BOT_TOKEN,
    ZOE,
    Workspace,
    as_seen,
    labels,
    named,
    names_in,
)


class SlackPlatform(ServedPlatform):
    """The platform; `workspace` is for tests of what only Slack has."""

    name = "slack"
    ping_s = 0.5
    stall_s = 1.5
    person, private = ANNA, "D0ANNA"
    stranger, stranger_chat = ZOE, "D0ZOE"
    group, thread = "C0HALL", "1700000000.000007"
    limit = 4000
    edits = threads = files = queues_messages = buttons = reacts = takes_back = loses_answers = True

    def __init__(self, folder: Path) -> None:
        self.workspace = Workspace()
        super().__init__(folder, self.workspace)
        self._presses = count(1)

    def channel(self, bus: MessageBus, **settings: Any) -> SlackChannel:
        usual = {
            "enabled": True, "bot_token": BOT_TOKEN, "app_token": APP_TOKEN, "allow_from": [self.person],
            "api_base": f"{self.workspace.url}/api",
        }  # fmt: skip
        channel = SlackChannel(SlackConfig.model_validate(usual | settings), bus)
        channel.ping_s = self.ping_s
        return channel

    # what people do and see

    async def says(
        self,
        text: str,
        *,
        sender: str | None = None,
        chat: str | None = None,
        thread: str | None = None,
        mention: bool = False,
        file: Path | None = None,
        reply_to: str | None = None,
        **more: Any,
    ) -> str:
        room = self.workspace.rooms[chat or self.private]
        post = self.workspace.add(room, sender or self.person, f"<@{BOT}> {text}" if mention else text, thread=thread)
        if file is not None:
            post.files = [self.workspace.put_file(*named(file))]
        self._last = post.ts
        await self.workspace.tell_of(room, post, mention=mention, **more)
        return post.ts

    async def press_button(self, message_id: str, label: str) -> None:
        room, post = next(
            (room, room.posts[message_id]) for room in self.workspace.rooms.values() if message_id in room.posts
        )
        button = labels(post)[label]
        payload = {
            "type": "block_actions", "user": {"id": self.person}, "channel": {"id": room.id}, "trigger_id": "t.1",
            "container": {"type": "message", "message_ts": post.ts, "channel_id": room.id},
            "message": {"ts": post.ts, "text": post.text} | ({"thread_ts": post.thread} if post.thread else {}),
            "actions": [{**button, "action_ts": f"1770000000.{next(self._presses):06}", "block_id": "b"}],
        }  # fmt: skip
        await self.workspace.send("interactive", payload)

    def shown(self, chat: str | None = None) -> list[Shown]:
        posts = self.workspace.rooms[chat or self.private].posts.values()
        return [
            Shown(one.ts, as_seen(one), names_in(one), thread_id=one.thread, edits=one.edits, buttons=[*labels(one)])
            for one in posts
            if one.user == BOT
        ]

    def reactions_on(self, message_id: str) -> list[str]:
        found = [room.posts[message_id] for room in self.workspace.rooms.values() if message_id in room.posts]
        return found[0].signs

    # what goes wrong

    def acknowledged(self, message_id: str) -> bool:
        about = [one for one in self.workspace.envelopes if one.ts == message_id]
        return bool(about) and all(one.acknowledged for one in about)

    async def revoke(self) -> None:
        self.workspace.good_tokens.discard(BOT_TOKEN)
        await self.workspace.tell({"type": "tokens_revoked", "tokens": {"oauth": [], "bot": [BOT]}})
        await self.drop()
