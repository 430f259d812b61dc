"""Slash commands in Discord's own menu. Choosing one counts as the message `/name words`."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import discord
from discord import app_commands

from nanobot.bus.events import MenuEntry

_LONGEST_TEXT = 100
"""https://discord.com/developers/docs/interactions/application-commands#application-command-object"""


async def _alone(interaction: discord.Interaction) -> None:
    """Never called: see Menu."""


async def _with_words(interaction: discord.Interaction, words: str | None = None) -> None:
    """Never called: see Menu."""


class Menu(app_commands.CommandTree[discord.Client]):
    """The command tree that is sent to Discord. The event handler handles a chosen command like a button press."""

    def __init__(self, client: discord.Client, entries: Sequence[MenuEntry]) -> None:
        super().__init__(
            client,
            allowed_contexts=app_commands.AppCommandContext(guild=True, dm_channel=True, private_channel=False),
            allowed_installs=app_commands.AppInstallationType(guild=True, user=False),
        )
        for entry in entries:
            self.add_command(_command(entry))

    async def interaction_check(self, interaction: discord.Interaction) -> bool:
        """Always False: the tree itself has nothing to do."""
        return False

    def fingerprint(self, application_id: int | None) -> str:
        """A value that changes if the commands must be sent to Discord again."""
        content = [application_id, [command.to_dict(self) for command in self.get_commands()]]
        return sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _command(entry: MenuEntry) -> "app_commands.Command[Any, ..., None]":
    text = entry.text[:_LONGEST_TEXT]
    if not entry.words:
        return app_commands.Command(name=entry.name, description=text, callback=_alone)
    callback = app_commands.describe(words=f"/{entry.name} {entry.words}"[:_LONGEST_TEXT])(_with_words)
    return app_commands.Command(name=entry.name, description=text, callback=callback)


def text_of_interaction(interaction: discord.Interaction) -> str | None:
    """The text of an interaction: a command with its words, or the value of a button. None for any other."""
    data: Mapping[str, Any] = interaction.data or {}
    if interaction.type is discord.InteractionType.component:
        return str(data.get("custom_id") or "") or None
    if interaction.type is discord.InteractionType.application_command and data.get("type", 1) == 1:
        words = [str(option["value"]) for option in data.get("options", ()) if "value" in option]
        return " ".join([f"/{data.get('name')}", *words])
    return None
