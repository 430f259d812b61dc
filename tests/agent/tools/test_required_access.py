"""What the built-in tools reach for, as they tell it before a call begins."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.tools.base import Tool, ToolContext
from nanobot.agent.tools.cron import CronTool
from nanobot.agent.tools.message import MessageTool
from nanobot.bus.events import Address, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.cron.service import CronService
from nanobot.cron.tool_backend import CronToolBackend
from nanobot.messages.types import Provenance
from nanobot.security.files.paths import PathPolicy
from nanobot.security.secrets import secrets_scope
from nanobot.utils.clock import FrozenClock


class Known:
    """Chats with names."""

    names = ("telegram", "slack")

    async def find(self, channel: str, name: str) -> str | None:
        return {"@ann": "4711", "nowhere": None}.get(name, name)


def context(folder: Path, **more: Any) -> ToolContext:
    clock = FrozenClock(datetime(2026, 3, 1))
    return ToolContext("telegram:7", Address("telegram", "7"), "t", folder, clock, **more)


def message_tool(folder: Path, bus: MessageBus | None = None) -> MessageTool:
    return MessageTool(bus or MessageBus(), Known(), PathPolicy(folder))  # type: ignore[arg-type]


async def rules(tool: Tool, folder: Path, arguments: dict[str, Any]) -> list[str]:
    return [one.rule for one in await tool.required_access(arguments, context(folder))]


@pytest.mark.parametrize(
    ("arguments", "reached"),
    [
        ({"content": "hi"}, []),
        ({"content": "hi", "channel": "telegram", "chat_id": "7"}, []),
        ({"content": "hi", "chat_id": "8"}, ["recipient:telegram:8"]),
        ({"content": "hi", "chat_id": "@ann"}, ["recipient:telegram:4711"]),
        ({"content": "hi", "channel": "Slack", "chat_id": "7"}, ["recipient:slack:7"]),
        ({"content": "hi", "chat_id": "nowhere"}, []),
        ({"content": "hi", "media": ["https://drop.example/p.png?d=notes", "cat.jpg"]}, ["host:drop.example"]),
    ],
)
async def test_a_message_reaches_for_other_chats_and_for_hosts_of_files(
    tmp_path: Path, arguments: dict[str, Any], reached: list[str]
):
    assert await rules(message_tool(tmp_path), tmp_path, arguments) == reached


@pytest.mark.parametrize(
    ("arguments", "reached"),
    [
        ({"action": "list"}, []),
        ({"action": "add", "message": "drink tea"}, ["job:add drink tea"]),
        ({"action": "remove", "job_id": "ab12"}, ["job:remove ab12"]),
        ({"action": "run", "job_id": "ab12"}, ["job:run ab12"]),
    ],
)
async def test_each_change_of_a_job_reaches_for_it(tmp_path: Path, arguments: dict[str, Any], reached: list[str]):
    service = CronService(tmp_path / "cron" / "jobs.json")

    assert await rules(CronTool(lambda: CronToolBackend(service)), tmp_path, arguments) == reached
    assert service.list_jobs() == []


async def test_a_job_is_reached_for_also_where_the_store_is_damaged(tmp_path: Path):
    (store := tmp_path / "cron" / "jobs.json").parent.mkdir()
    store.write_text("no jobs", encoding="utf-8")
    tool = CronTool(lambda: CronToolBackend(CronService(store)))

    assert await rules(tool, tmp_path, {"action": "add", "message": "drink tea"}) == ["job:add drink tea"]


class Posted(MessageBus):
    """Takes messages for delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.posted: list[OutboundMessage] = []

    def post_outbound(self, message: OutboundMessage) -> Any:
        self.posted.append(message)
        receipt = super().post_outbound(message)
        receipt.settle()
        return receipt


@pytest.mark.parametrize(
    ("entered", "value"), [(Provenance.OWNER, "Yes"), (Provenance.TOOL, "Yes"), (Provenance.WEB, "I choose: Yes")]
)
async def test_words_from_outside_get_no_button_that_could_answer_a_question(
    tmp_path: Path, entered: Provenance, value: str
):
    bus = Posted()
    ctx = context(tmp_path, entered=entered)

    await message_tool(tmp_path, bus).execute("Pizza?", buttons=["Yes", "Maybe"], ctx=ctx)

    assert [button.value for one in bus.posted for button in one.buttons] == [value, "Maybe"]


async def test_a_message_carries_no_secret(tmp_path: Path):
    bus, secret = Posted(), "a-key-of-ours-4711"
    tool, ctx = message_tool(tmp_path, bus), context(tmp_path)

    with secrets_scope(lambda: {secret: "providers.openai.api_key"}):
        await tool.execute(f"It is {secret}.", buttons=[secret], ctx=ctx)
        refused = await tool.execute("Look", media=[f"https://drop.example/{secret}.png"], ctx=ctx)

    assert [(one.content, one.buttons[0].label) for one in bus.posted] == [("It is [key].", "[key]")]
    assert "providers.openai.api_key" in str(refused.content)
