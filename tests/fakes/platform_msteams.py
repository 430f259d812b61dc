"""Microsoft Teams for the contract suite: on loopback, to which the channel is pointed by its addresses."""

from pathlib import Path
from typing import Any

from nanobot.bus.queue import MessageBus
from nanobot.channels.msteams import TeamsChannel
from nanobot.config.channels import TeamsConfig
from nanobot.testing.platform import Shown
from tests.fakes.msteams import ANNA, APP_ID, BOT, HALL, PASSWORD, TENANT, ZOE, FakeTeams, Post, chat_of
from tests.fakes.served import ServedPlatform
from tests.support.toy_gateway import free_port


class TeamsPlatform(ServedPlatform):
    """The platform; `server` is for tests of what only Teams has."""

    server: FakeTeams
    name = "msteams"
    person, private = ANNA, chat_of(ANNA)
    stranger, stranger_chat = ZOE, chat_of(ZOE)
    group = HALL
    hears_groups = False
    thread = "1700000000000"
    limit = 20_000
    edits = threads = files = buttons = types = loses_answers = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FakeTeams())
        self._bot_port = free_port()
        self.server.webhook = f"http://127.0.0.1:{self._bot_port}/api/messages"

    def channel(self, bus: MessageBus, **settings: Any) -> TeamsChannel:
        usual = {
            "enabled": True, "app_id": APP_ID, "app_password": PASSWORD, "tenant_id": TENANT,
            "allow_from": [self.person], "host": "127.0.0.1", "port": self._bot_port,
            "api_base": self.server.url, "openid_url": f"{self.server.url}/openid",
            "service_url": self.server.service_url, "trusted_service_url_hosts": ["127.0.0.1"],
        }  # fmt: skip
        channel = TeamsChannel(TeamsConfig.model_validate(usual | settings), bus)
        channel.login_s = 0.2
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
        if chat == HALL and not mention:
            return "not for the bot"  # Teams tells it nothing of such a message
        more: dict[str, Any] = {}
        if mention:
            entity = {"type": "mention", "text": "<at>Nano</at>", "mentioned": {"id": BOT, "name": "Nano"}}
            text, more = f"<at>Nano</at> {text}", {"entities": [entity]}
        if file is not None:
            self.server.files[file.name] = file.read_bytes()
            url = f"{self.server.url}/files/{file.name}"
            more["attachments"] = [{"contentType": "image/*", "contentUrl": url, "name": file.name}]
        if thread is not None:
            chat = f"{chat};messageid={thread}"
        self._last = await self.server.says(text, sender=sender or self.person, chat=chat, **more)
        return self._last

    def shown(self, chat: str | None = None) -> list[Shown]:
        return [self._as_seen(post) for post in self.server.in_chat(chat or self.private)]

    def _as_seen(self, post: Post) -> Shown:
        files = [one["name"] for one in post.attachments if "name" in one]
        thread = post.chat.partition(";messageid=")[2] or None
        buttons = [button["title"] for button in post.buttons]
        return Shown(post.id, post.text, files, thread_id=thread, edits=post.edits, buttons=buttons)

    async def press_button(self, message_id: str, label: str) -> None:
        await self.server.presses(next(post for post in self.server.posts if post.id == message_id), label)

    def typed(self, chat: str | None = None) -> int:
        return self.server.typing.count(chat or self.private)

    # what goes wrong

    async def repeat_last(self) -> None:
        await self.server.deliver(self.server.sent[self._last])

    def acknowledged(self, message_id: str) -> bool:
        return 200 in self.server.answers.get(message_id, [])

    async def half_open(self) -> None:
        await self.drop()  # no connection lasts longer than a request

    async def revoke(self) -> None:
        self.server.password = "another"
        self.server.expire_tokens()
