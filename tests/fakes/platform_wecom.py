"""WeCom for the contract suite: on loopback, to which the channel is pointed by `wsUrl`."""

from pathlib import Path
from typing import Any

from nanobot.bus.queue import MessageBus
from nanobot.channels.wecom import WeComChannel
from nanobot.config.channels import WeComConfig
from nanobot.testing.platform import Shown
from tests.fakes.served import ServedPlatform
from tests.fakes.wecom import ANNA, BOT_ID, HALL, SECRET, ZOE, FakeWeCom, Post


class WeComPlatform(ServedPlatform):
    """The platform; `server` is for tests of what only WeCom has."""

    server: FakeWeCom
    scheme = "ws"
    name = "wecom"
    beat_s = 0.2
    stall_s = 0.8
    person = private = ANNA
    stranger = stranger_chat = ZOE
    group = HALL
    hears_groups = False
    limit = 20_000
    edits = files = buttons = loses_answers = True
    resumes_edits = acknowledges = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FakeWeCom())

    def channel(self, bus: MessageBus, **settings: Any) -> WeComChannel:
        usual = {
            "enabled": True, "bot_id": BOT_ID, "secret": SECRET, "allow_from": [self.person],
            "ws_url": self.server.url,
        }  # fmt: skip
        channel = WeComChannel(WeComConfig.model_validate(usual | settings), bus)
        channel.beat_s = self.beat_s
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
        group = chat if chat == HALL else None
        if group is not None and not mention:
            return "not for the robot"  # WeCom tells it nothing of such a message
        more: dict[str, Any] = {}
        if file is not None:
            picture = self.server.put_file("image", file.name, file.read_bytes())
            items = [{"msgtype": "text", "text": {"content": text}}, picture]
            more = {"msgtype": "mixed", "mixed": {"msg_item": items}}
        self._last = await self.server.says(text, sender=sender or self.person, group=group, **more)
        return self._last

    def shown(self, chat: str | None = None) -> list[Shown]:
        return [self._as_seen(post) for post in self.server.in_chat(chat or self.private)]

    def _as_seen(self, post: Post) -> Shown:
        if post.kind == "template_card":
            buttons = [one["text"] for one in post.content["button_list"]]
            return Shown(post.content["task_id"], post.content["main_title"]["title"], buttons=buttons)
        media = post.content.get("media_id")
        return Shown(
            post.id, post.content.get("content", ""), [self.server.files[media][1]] if media else [], edits=post.edits
        )

    async def press_button(self, message_id: str, label: str) -> None:
        await self.server.presses(
            next(one for one in self.server.posts if one.content.get("task_id") == message_id), label
        )

    # what goes wrong

    async def revoke(self) -> None:
        self.server.secret = "another"
        await self.drop()
