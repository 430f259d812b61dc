"""One request to the running gateway of a data folder, for commands."""

import asyncio
from pathlib import Path
from typing import Any

from nanobot.config.paths import DataPaths, get_data_dir, use_config
from nanobot.errors import NanobotError

NO_GATEWAY = (
    "No gateway is running for {data}. Start one with `nanobot gateway`, or install it as a service with "
    "`nanobot gateway install`."
)


def get_places(config: Path | None) -> DataPaths:
    """The data folder's paths, without reading the config."""
    use_config(config)
    return DataPaths(get_data_dir())


def ask_gateway(places: DataPaths, request: dict[str, Any]) -> dict[str, Any] | None:
    """Send a request and return the answer, or None where no gateway is running. Raises GatewayError if it refuses."""
    from nanobot.gateway.control.client import connect  # asyncio streams are slow to import

    async def ask() -> dict[str, Any] | None:
        async with connect(places.state) as connection:
            return await connection.request(request) if connection is not None else None

    return asyncio.run(ask())


def require_gateway(places: DataPaths, request: dict[str, Any]) -> dict[str, Any]:
    """Like `ask_gateway`, but raises NanobotError where no gateway is running."""
    answer = ask_gateway(places, request)
    if answer is None:
        raise NanobotError(NO_GATEWAY.format(data=places.data))
    return answer
