"""DingTalk for the contract suite: on loopback, to which the channel is pointed by `apiBase` and `oapiBase`."""

from pathlib import Path
from typing import Any

from nanobot.bus.queue import MessageBus
from nanobot.channels.dingtalk import DingTalkChannel
from nanobot.config.channels import DingTalkConfig
from nanobot.testing.platform import Shown
from tests.fakes.dingtalk import ANNA, CLIENT_ID, HALL, SECRET, ZOE, FakeDingTalk, Post, as_seen
from tests.fakes.served import ServedPlatform


class DingTalkPlatform(ServedPlatform):
    """The platform; `server` is for tests of what only DingTalk has."""

    server: FakeDingTalk
    name = "dingtalk"
    ping_s = 0.2
    stall_s = 0.8
    person = private = ANNA
    stranger = stranger_chat = ZOE
    group = f"group:{HALL}"
    hears_groups = False
    limit = 18_000
    edits = files = reacts = loses_answers = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FakeDingTalk())

    def channel(self, bus: MessageBus, **settings: Any) -> DingTalkChannel:
        usual = {
            "enabled": True, "client_id": CLIENT_ID, "client_secret": SECRET, "allow_from": [self.person],
            "api_base": self.server.url, "oapi_base": self.server.url,
        }  # fmt: skip
        channel = DingTalkChannel(DingTalkConfig.model_validate(usual | settings), bus)
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
    ) -> str:
        group = chat.removeprefix("group:") if chat is not None and chat.startswith("group:") else None
        if group is not None and not mention:
            return "not for the robot"  # DingTalk tells it nothing of such a message
        more: dict[str, Any] = {}
        if file is not None:
            code = self.server.put_file(file.name, file.read_bytes())
            parts = [{"text": text}, {"type": "picture", "downloadCode": code}]
            more = {"msgtype": "richText", "content": {"richText": parts}}
        self._last = await self.server.says(f" {text}", sender=sender or self.person, group=group, **more)
        return self._last

    def shown(self, chat: str | None = None) -> list[Shown]:
        posts = self.server.in_chat((chat or self.private).removeprefix("group:"))
        return [Shown(post.id, as_seen(post), self._files_of(post), edits=post.edits) for post in posts]

    def _files_of(self, post: Post) -> list[str]:
        media = post.parameters.get("mediaId") or post.parameters.get("photoURL")
        return [self.server.files[media][0]] if media else []

    def reactions_on(self, message_id: str) -> list[str]:
        return self.server.reactions.get(message_id, [])

    # what goes wrong

    def acknowledged(self, message_id: str) -> bool:
        about = [one for one in self.server.pushed if one.data["msgId"] == message_id]
        return bool(about) and all(one.acknowledged for one in about)

    async def revoke(self) -> None:
        self.server.secret = "another"
        self.server.expire_tokens()
        await self.drop()
