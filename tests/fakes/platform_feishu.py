"""Feishu for the contract suite: a company on loopback, to which the channel is pointed by `domain`."""

from pathlib import Path
from typing import Any

from nanobot.bus.queue import MessageBus
from nanobot.channels.feishu import FeishuChannel
from nanobot.config.channels import FeishuConfig
from nanobot.testing.platform import Shown
from tests.fakes.feishu import (
    ANNA,
    APP_ID,
    BOT,
    BOT_NAME,
    HALL,
    HALL_ROOT,
    SECRET,
    ZOE,
    Event,
    Feishu,
    Post,
    as_seen,
    buttons_of,
)
from tests.fakes.served import ServedPlatform


class FeishuPlatform(ServedPlatform):
    """The platform; `feishu` is for tests of what only Feishu has."""

    _last_event: Event

    name = "feishu"
    stall_s = 2.5
    person, private = ANNA, ANNA
    stranger, stranger_chat = ZOE, ZOE
    group, thread = HALL, HALL_ROOT
    limit = 7000
    edits = threads = files = quotes = dedupes = queues_messages = buttons = reacts = takes_back = loses_answers = True

    def __init__(self, folder: Path) -> None:
        self.feishu = Feishu()
        super().__init__(folder, self.feishu)

    def channel(self, bus: MessageBus, **settings: Any) -> FeishuChannel:
        usual = {
            "enabled": True, "app_id": APP_ID, "app_secret": SECRET, "allow_from": [self.person],
            "domain": self.feishu.url, "reply_to_message": True,
        }  # fmt: skip
        return FeishuChannel(FeishuConfig.model_validate(usual | settings), bus)

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
        kind: str = "text",
        content: dict[str, Any] | None = None,
        mentions: list[dict[str, Any]] | None = None,
    ) -> str:
        room = self.feishu.room_of(chat or self.private)
        words = {"text": f"@_user_1 {text}" if mention else text}
        if file is not None:  # a text with a picture is a "post" at Feishu
            key = self.feishu.put_file(file.name, file.read_bytes(), "img")
            kind, content = (
                "post",
                {"title": "", "content": [[{"tag": "text", "text": text}], [{"tag": "img", "image_key": key}]]},
            )
        post = self.feishu.add(room, sender or self.person, kind, content or words)
        post.mentions = mentions or []
        if mention:
            post.mentions = [{"key": "@_user_1", "id": {"open_id": BOT}, "name": BOT_NAME, "tenant_key": "t"}]
        if (target := self.feishu.post_of(thread or reply_to or "")) is not None:
            post.root, post.parent, post.topic = target.root or target.id, target.id, target.topic
        self._last_event = await self.feishu.tell_of(post)
        return post.id

    async def press_button(self, message_id: str, label: str, sender: str | None = None) -> None:
        post = self._post(message_id)
        value = buttons_of(post)[label]["behaviors"][0]["value"]
        event = {
            "operator": {"tenant_key": "t", "open_id": sender or self.person, "union_id": "on_x"}, "token": "c-1",
            "action": {"value": value, "tag": "button"}, "host": "im_message",
            "context": {"open_message_id": post.id, "open_chat_id": post.chat},
        }  # fmt: skip
        await self.feishu.tell("card.action.trigger", event)

    def shown(self, chat: str | None = None) -> list[Shown]:
        return [
            Shown(
                post.id,
                as_seen(post),
                [
                    self.feishu.files[key][0]
                    for key in post.content.values()
                    if isinstance(key, str) and key in self.feishu.files
                ],
                post.parent or None,
                (post.root or None) if post.topic else None,
                post.card.edits if post.card is not None else 0,
                [*buttons_of(post)],
            )
            for post in self.feishu.room_of(chat or self.private).posts.values()
            if post.sender == APP_ID
        ]

    def reactions_on(self, message_id: str) -> list[str]:
        return self._post(message_id).signs

    def _post(self, message_id: str) -> Post:
        post = self.feishu.post_of(message_id)
        assert post is not None
        return post

    # what goes wrong

    async def repeat_last(self) -> None:
        await self.feishu.deliver(self._last_event)

    def acknowledged(self, message_id: str) -> bool:
        about = [event for event in self.feishu.events if event.about == message_id]
        return bool(about) and all(event.acknowledged for event in about)

    async def revoke(self) -> None:
        self.feishu.secret = "another"
        self.feishu.tokens.clear()
        await self.drop()
