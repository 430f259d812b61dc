"""QQ for the contract suite: on loopback, to which the channel is pointed by `apiBase`."""

from pathlib import Path
from typing import Any

from nanobot.bus.queue import MessageBus
from nanobot.channels.qq import QQChannel
from nanobot.config.channels import QQConfig
from nanobot.testing.platform import Shown
from tests.fakes.qq import ANNA, APP_ID, HALL, SECRET, ZOE, FakeQQ, Post
from tests.fakes.served import ServedPlatform


class QQPlatform(ServedPlatform):
    """The platform; `server` is for tests of what only QQ has."""

    server: FakeQQ
    name = "qq"
    stall_s = 0.8
    person = private = ANNA
    stranger = stranger_chat = ZOE
    group = HALL
    hears_groups = False
    limit = 4000
    files = dedupes = queues_messages = types = loses_answers = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FakeQQ())
        self.server.beat_s = 0.2

    def channel(self, bus: MessageBus, **settings: Any) -> QQChannel:
        usual = {
            "enabled": True, "app_id": APP_ID, "secret": SECRET, "allow_from": [self.person],
            "api_base": self.server.url,
        }  # fmt: skip
        return QQChannel(QQConfig.model_validate(usual | settings), bus)

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
        group = chat if chat == HALL else None
        if group is not None and not mention:
            return "not for the bot"  # QQ tells it nothing of such a message
        more: dict[str, Any] = {}
        if file is not None:
            url = self.server.put_file(file.name, file.read_bytes())
            more = {"attachments": [{"content_type": "image/png", "filename": file.name, "url": url}]}
        self._last = await self.server.says(text, sender=sender or self.person, group=group, **more)
        return self._last

    def shown(self, chat: str | None = None) -> list[Shown]:
        return [Shown(post.id, post.text, self._files_of(post)) for post in self.server.in_chat(chat or self.private)]

    def _files_of(self, post: Post) -> list[str]:
        media = post.body.get("media")
        return [self.server.files[media["file_info"]][0]] if media else []

    def typed(self, chat: str | None = None) -> int:
        return self.server.typing.count(chat or self.private)

    # what goes wrong

    def acknowledged(self, message_id: str) -> bool:
        """Whether a heartbeat or a resume said so: what it names as the last event does not come again."""
        number = next(one["s"] for one in self.server.events if one["d"] == self.server.sent[message_id])
        return self.server.acknowledged >= int(number)

    async def revoke(self) -> None:
        self.server.secret = "another"
        self.server.expire_tokens()
        await self.drop()
