"""Programs with a key of the API."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from nanobot.gateway.service import DATABASE_SCHEMA
from nanobot.security.credentials import CredentialKind, Credentials, HttpRole
from nanobot.utils.clock import SystemClock
from nanobot.utils.database import open_database
from tests.support.running_gateway import Running

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A picture, in base64."""


async def api_key(here: Running, name: str = "laptop", role: HttpRole = HttpRole.OWNER, person: str = "") -> str:
    """A new key, made by another process' means."""
    async with open_database(here.home / "state" / "nanobot.db", DATABASE_SCHEMA, is_owner=False) as database:
        secret = await Credentials(database, SystemClock()).add(CredentialKind.API_KEY, name, role, person)
    assert secret is not None
    return secret


def base_url(here: Running) -> str:
    """The API on the gateway's port."""
    return f"http://127.0.0.1:{here.gateway.http.port}/v1"


@asynccontextmanager
async def program(
    here: Running, name: str = "laptop", role: HttpRole = HttpRole.OWNER, person: str = ""
) -> AsyncIterator[httpx.AsyncClient]:
    """A program with a key of its own."""
    headers = {"Authorization": f"Bearer {await api_key(here, name, role, person)}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=base_url(here), headers=headers, trust_env=False, timeout=20, limits=limits
    ) as client:
        yield client


async def ask(client: httpx.AsyncClient, text: str, **body: Any) -> dict[str, Any]:
    """Send a message as a chat completion and return the answer."""
    headers = body.pop("headers", {})
    answer = await client.post(
        "/chat/completions", json={"messages": [{"role": "user", "content": text}], **body}, headers=headers
    )
    assert answer.status_code == 200, answer.text
    answered: dict[str, Any] = answer.json()
    return answered


def read_events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, read strictly: `{id, event, data}`."""
    events: list[dict[str, Any]] = []
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        if not line:
            if fields:
                assert "data" in fields, fields
                events.append(fields)
            fields = {}
        elif not line.startswith(":"):
            name, colon, value = line.partition(": ")
            assert colon and name in ("id", "event", "data") and name not in fields, line
            fields[name] = value
    assert not fields, "the stream ends within an event"
    for event in events:
        event["data"] = event["data"] if event["data"] == "[DONE]" else json.loads(event["data"])
    return events
