"""A person who answers approval questions."""

import asyncio

from nanobot.agent.events import Answer, ApprovalAsked, TurnEvent, TurnResult
from nanobot.agent.tools.base import Tool
from nanobot.bus.events import InboundMessage
from nanobot.messages.types import Origin
from nanobot.testing import Bot


def with_tools(bot: Bot, *tools: Tool) -> Bot:
    for tool in tools:
        bot.register(tool)
    return bot


class Person:
    """Sees the events of a turn, and answers each question in the same way."""

    def __init__(self, bot: Bot, answer: Answer | None = Answer.ONCE) -> None:
        self.bot = bot
        self.answer = answer
        self.events: list[TurnEvent] = []

    def __call__(self, event: TurnEvent) -> None:
        self.events.append(event)
        if isinstance(event, ApprovalAsked) and self.answer is not None:
            asyncio.get_running_loop().call_soon(self.bot.answer, event.question, self.answer)

    @property
    def asked(self) -> list[ApprovalAsked]:
        return [event for event in self.events if isinstance(event, ApprovalAsked)]

    async def say(self, text: str) -> TurnResult:
        message = InboundMessage.from_owner("cli", "direct", text, session_key="cli:direct", origin=Origin.CLI)
        return await self.bot.run_turn(message, self, attended=True)
