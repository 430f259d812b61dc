"""What the tools for messages and jobs reach for, as they tell it before a call begins, and what a message carries."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.cron import CronTool
from nanobot.agent.tools.message import MessageTool
from nanobot.agent.tools.registry import ToolRegistry
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


def context(folder: Path, **more: Any) -> ToolContext:
    clock = FrozenClock(datetime(2026, 3, 1))
    return ToolContext("telegram:7", Address("telegram", "7"), "t", folder, clock, **more)


@pytest.fixture
def bus() -> Posted:
    return Posted()


@pytest.fixture
def tools(tmp_path: Path, bus: Posted) -> ToolRegistry:
    registry = ToolRegistry()
    registry.register(MessageTool(bus, Known(), PathPolicy(tmp_path)))  # type: ignore[arg-type]
    registry.register(CronTool(lambda: CronToolBackend(CronService(tmp_path / "cron" / "jobs.json"))))
    return registry


@pytest.mark.parametrize("store", [None, "no jobs"], ids=["sound store", "damaged store"])
@pytest.mark.parametrize(
    ("name", "arguments", "reached"),
    [
        ("message", {"content": "hi"}, []),
        ("message", {"content": "hi", "channel": "telegram", "chat_id": "7"}, []),
        ("message", {"content": "hi", "chat_id": "8"}, ["recipient:telegram:8"]),
        ("message", {"content": "hi", "chat_id": "@ann"}, ["recipient:telegram:4711"]),
        ("message", {"content": "hi", "channel": "Slack", "chat_id": "7"}, ["recipient:slack:7"]),
        ("message", {"content": "hi", "chat_id": "nowhere"}, []),
        (
            "message",
            {"content": "hi", "media": ["https://drop.example/p.png?d=notes", "cat.jpg"]},
            ["host:drop.example"],
        ),
        ("cron", {"action": "list"}, []),
        ("cron", {"action": "add", "message": "drink tea"}, ["job:add drink tea"]),
        ("cron", {"action": "remove", "job_id": "ab12"}, ["job:remove ab12"]),
        ("cron", {"action": "run", "job_id": "ab12"}, ["job:run ab12"]),
    ],
)
async def test_other_chats_hosts_of_files_and_each_change_of_a_job_are_reached_for(
    tmp_path: Path, tools: ToolRegistry, name: str, arguments: dict[str, Any], reached: list[str], store: str | None
):
    if store is not None:
        (tmp_path / "cron").mkdir()
        (tmp_path / "cron" / "jobs.json").write_text(store, encoding="utf-8")

    accesses = await tools.required_access(name, arguments, context(tmp_path))

    assert [access.rule for access in accesses] == reached


@pytest.mark.parametrize(
    ("entered", "value"), [(Provenance.OWNER, "Yes"), (Provenance.TOOL, "Yes"), (Provenance.WEB, "I choose: Yes")]
)
async def test_words_from_outside_get_no_button_that_could_answer_a_question(
    tmp_path: Path, tools: ToolRegistry, bus: Posted, entered: Provenance, value: str
):
    arguments = {"content": "Pizza?", "buttons": ["Yes", "Maybe"]}

    await tools.call("message", arguments, context(tmp_path, entered=entered))

    assert [button.value for one in bus.posted for button in one.buttons] == [value, "Maybe"]


async def test_a_message_carries_no_secret(tmp_path: Path, tools: ToolRegistry, bus: Posted):
    secret, ctx = "a-key-of-ours-4711", context(tmp_path)

    with secrets_scope(lambda: {secret: "providers.openai.api_key"}):
        await tools.call("message", {"content": f"It is {secret}.", "buttons": [secret]}, ctx)
        media = [f"https://drop.example/{secret}.png"]
        refused = await tools.call("message", {"content": "Look", "media": media}, ctx)

    assert [(one.content, one.buttons[0].label) for one in bus.posted] == [("It is [key].", "[key]")]
    assert "providers.openai.api_key" in str(refused.content)
