"""What commands ask of the running gateway of their data folder, in one question and one answer."""

import asyncio
from pathlib import Path
from typing import Any

from nanobot.config.paths import Places, get_data_dir, use_config
from nanobot.errors import NanobotError

NO_GATEWAY = (
    "No gateway runs for {data}. Start one with `nanobot gateway`, or as a service with `nanobot gateway install`."
)


def places_of(config: Path | None) -> Places:
    """Where things lie, without reading the config."""
    use_config(config)
    return Places(get_data_dir())


def ask_gateway(places: Places, request: dict[str, Any]) -> dict[str, Any] | None:
    """The gateway's answer; None where no gateway runs. Raises GatewayError for its no."""
    from nanobot.gateway.client import dial  # asyncio's streams: not for --help

    async def ask() -> dict[str, Any] | None:
        async with dial(places.state) as line:
            return await line.ask(request) if line is not None else None

    return asyncio.run(ask())


def demand_gateway(places: Places, request: dict[str, Any]) -> dict[str, Any]:
    """The same. Raises NanobotError where no gateway runs."""
    answer = ask_gateway(places, request)
    if answer is None:
        raise NanobotError(NO_GATEWAY.format(data=places.data))
    return answer
