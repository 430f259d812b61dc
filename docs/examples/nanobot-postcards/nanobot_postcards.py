"""Postcards: a channel whose letterbox is a folder, a tool that knows the postage, a hook that minds the room.

Who writes to the bot puts a file into `in/`, named `<who>.<number>.txt`; its answers are files in `out/`, named after
who they are for.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanobot.agent.hooks import Deny, Hook, MessageSeen, NewResult, ResultSeen
from nanobot.agent.tools.base import Effect, Tool
from nanobot.bus.events import OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.incoming import Incoming


class PostcardChannel(BaseChannel):
    """`channels.postcards`, with the `folder` of the letterbox."""

    name = "postcards"  # as in the entry point and in the config
    stall_s = 0.0  # a letterbox may be empty for days, and be well

    def __init__(self, config: dict[str, Any], bus: MessageBus) -> None:
        super().__init__(config, bus)
        folder = Path(config.get("folder") or "")
        self._came, self._went = folder / "in", folder / "out"

    async def start(self) -> None:
        if not self.config.get("folder"):
            raise ChannelSetupError("channels.postcards.folder is empty. Set it to the folder of the letterbox.")
        for folder in (self._came, self._went):
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        self.mark_up()
        while True:
            for card in await asyncio.to_thread(lambda: sorted(self._came.glob("*.*.txt"))):
                who, _, _ = card.name.partition(".")
                text = await asyncio.to_thread(card.read_text, encoding="utf-8")
                await self.receive(Incoming(who, who, text, card.name))
                await asyncio.to_thread(card.unlink)  # it is on the disk: the letterbox may forget it
            await asyncio.sleep(self.config.get("everyS", 0.2))

    async def stop(self) -> None:
        """Nothing to say goodbye to."""

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        if message.metadata.get("_progress"):
            return ()  # a card for each step of the work is too much
        card = self._went / f"{message.chat_id}.{message.journal_id or 0}.txt"
        unseen = "".join(f"\n({Path(file).name} cannot be read on a card)" for file in message.media)
        await asyncio.to_thread(_post, card, message.content + unseen)
        return (card.name,)


def _post(card: Path, text: str) -> None:
    """Write the card, whole or not at all; one that was sent before a crash stays as it is."""
    if not card.exists():
        (unfinished := card.with_suffix(".new")).write_text(text, encoding="utf-8")
        unfinished.replace(card)


class Postage(Tool):
    """What a card costs."""

    name = "postage"
    description = "What the postage of a postcard to a country is, in cents."
    parameters = {
        "type": "object",
        "properties": {"country": {"type": "string", "description": "The country, in English"}},
        "required": ["country"],
    }
    effect = Effect.READ  # it only reads: a crash may run it again, and nobody need be asked

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """`settings` is the section `plugins.nanobot-postcards` of the config."""
        self._prices: Mapping[str, int] = settings.get("prices", {})

    async def execute(self, country: str) -> str:
        """Look it up."""
        cents = self._prices.get(country.lower())
        return f"{cents} cents" if cents is not None else f"Error: nobody knows the postage to {country}. Ask for it."


class RoomOnTheCard(Hook):
    """Denies what does not fit on a card, and writes prices as people do."""

    guard = True  # better no message than one that nobody could judge

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._room: int = settings.get("room", 400)

    async def on_message(self, message: MessageSeen) -> Deny | None:
        """Too long for a card? Then it is sent back, with the reason."""
        if message.turn.channel == PostcardChannel.name and len(message.text) > self._room:
            return Deny(f"A postcard has room for {self._room} characters, and yours has {len(message.text)}.")
        return None

    async def after_tool(self, result: ResultSeen) -> NewResult | None:
        """`140 cents` is `1.40`."""
        cents = result.text.removesuffix(" cents")
        if result.call.name != Postage.name or not cents.isdigit():
            return None
        return NewResult(f"{int(cents) / 100:.2f}")
