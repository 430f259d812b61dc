"""WeChat for the contract suite: on loopback, to which the channel is pointed by `baseUrl` and `cdnBaseUrl`."""

from pathlib import Path
from typing import Any

from nanobot.bus.queue import MessageBus
from nanobot.channels.weixin import WeixinChannel
from nanobot.config.channels import WeixinConfig
from nanobot.testing.platform import Shown
from tests.fakes.served import ServedPlatform
from tests.fakes.weixin import ANNA, TOKEN, ZOE, FakeWeixin, Post, text_item


class WeixinPlatform(ServedPlatform):
    """The platform; `server` is for tests of what only WeChat has."""

    server: FakeWeixin
    name = "weixin"
    stall_s = 0.8
    person = private = ANNA
    stranger = stranger_chat = ZOE
    limit = 1800
    files = queues_messages = types = loses_answers = True
    rate_limits = speaks_first = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FakeWeixin())

    def channel(self, bus: MessageBus, **settings: Any) -> WeixinChannel:
        usual = {
            "enabled": True, "token": TOKEN, "allow_from": [self.person], "base_url": self.server.url,
            "cdn_base_url": f"{self.server.url}/c2c", "reply_progress_messages": True,
        }  # fmt: skip
        channel = WeixinChannel(WeixinConfig.model_validate(usual | settings), bus)
        vars(channel)["pace_s"] = 0.0
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
    ) -> str:
        items = [text_item(text)]
        if file is not None:
            items.append({"type": 2, "image_item": {"media": self.server.put_file(file.read_bytes())}})
        self._last = await self.server.says(*items, sender=sender or self.person)
        return self._last

    def shown(self, chat: str | None = None) -> list[Shown]:
        return [Shown(post.id, post.text, self._files_of(post)) for post in self.server.in_chat(chat or self.private)]

    def _files_of(self, post: Post) -> list[str]:
        """The names of files; a picture has none, so its bytes are looked for among those that were sent."""
        if post.item["type"] == 1:
            return []
        if "file_item" in post.item:
            return [post.item["file_item"]["file_name"]]
        (kind,) = post.item.keys() - {"type"}
        data = self.server.sent_file(post.item[kind]["media"])
        return [path.name for path in self.folder.parent.iterdir() if path.is_file() and path.read_bytes() == data]

    def typed(self, chat: str | None = None) -> int:
        return self.server.typing.count(chat or self.private)

    # what goes wrong

    def acknowledged(self, message_id: str) -> bool:
        """Whether a poll came with a cursor behind it: it does not come again."""
        return message_id in [str(one["message_id"]) for one in self.server.messages[: self.server.polled]]

    async def half_open(self) -> None:
        self.server.silence += 1

    async def revoke(self) -> None:
        self.server.token = "another"
        await self.drop()
