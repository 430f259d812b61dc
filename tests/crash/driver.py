"""Programs whose lives are killed again and again: how they are run, and the model that answers in them."""

import asyncio
import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import Delta, Finished, LLMProvider, LLMResponse
from tests.support.home import told


def killed(program: str, homes: Path, rounds: int, seed: int) -> dict[str, object]:
    """What `tests.crash.<program>` found in so many rounds."""
    found: dict[str, object] = json.loads(told(f"tests.crash.{program}", str(homes), str(rounds), str(seed)))
    return found


class FittingModel(LLMProvider):
    """Says what fits what it is shown, so that it can be killed anywhere."""

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        await asyncio.sleep(0.01)
        answer = self.answer(messages)
        yield Finished(LLMResponse(answer) if isinstance(answer, str) else answer)

    def get_default_model(self) -> str:
        return "m"

    @abstractmethod
    def answer(self, messages: Sequence[ChatMessage]) -> str | LLMResponse:
        """What fits."""
