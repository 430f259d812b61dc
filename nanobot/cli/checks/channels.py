"""Channels: each that is switched on is let in by its platform."""

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial

from nanobot.channels.registry import load_channel
from nanobot.cli.checks.findings import Check, Finding, Patient, error, note
from nanobot.errors import NanobotError

_LIMIT_S = 25.0


def channel_checks(names: Iterable[str]) -> list[Check]:
    """A check for each of these channels."""
    return [
        Check(f"channels.{name}", f"{name} lets the bot in", partial(_is_let_in, name), _LIMIT_S, asks_outside=True)
        for name in names
    ]


def _is_let_in(name: str, patient: Patient) -> Iterator[Finding]:
    """By what the gateway has seen, where one runs; else by asking the platform once."""
    if patient.gateway is not None:
        told = patient.gateway["channels"].get(name)
        if told is None:
            yield error("The gateway that runs does not have it.", "nanobot gateway restart")
        elif told["state"] == "up":
            yield note("connected")
        else:
            yield error(f"{told['state']}: {told['lastError'] or 'no connection'}", f"nanobot channels login {name}")
        return
    from nanobot.cli.channel_setup import log_in  # the engine of channels

    try:
        load_channel(name, patient.config.plugins.disabled)
        asyncio.run(log_in(name, patient.config, patient.places, force=False))
    except NanobotError as refused:
        yield error(str(refused), f"nanobot channels login {name} --force asks for what it needs.")
    else:
        yield note("lets the bot in")
