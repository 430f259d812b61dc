"""Pictures out: a whole bot, a real endpoint on loopback, a file in the workspace, and its price in the ledger."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanobot.config.schema import Config
from nanobot.testing import Bot, open_bot
from tests.fakes.images import PNG, FakeImages
from tests.support.ledger_rows import rows_of
from tests.support.tools import call_in_turn


@pytest.fixture
def server() -> Iterator[FakeImages]:
    with FakeImages() as server:
        yield server


def config_for(server: FakeImages, provider: str = "openai", **other: Any) -> Config:
    base = {"openai": "/v1", "custom": "/v1", "gemini": "/v1beta/openai"}[provider]
    section = {"apiBase": f"{server.url}{base}", "apiKey": server.api_key}
    return Config.model_validate({"providers": {provider: section}, **other})


async def draw(bot: Bot, **arguments: str) -> str:
    """What the model reads of one call."""
    return str((await call_in_turn(bot, "image", **{"prompt": "A red square.", **arguments}))["content"])


@pytest.mark.parametrize(
    ("provider", "model", "tokens"), [("openai", "gpt-image-1", 1000), ("gemini", "gemini-2.5-flash-image", 1290)]
)
async def test_picture_is_saved_in_the_workspace_and_stands_in_the_ledger(
    tmp_path: Path, server: FakeImages, provider: str, model: str, tokens: int
):
    async with open_bot(tmp_path, config=config_for(server, provider)) as bot:
        result = await draw(bot, path="art/square.jpg")
        unnamed = await draw(bot)

    (saved,) = (tmp_path / "workspace" / "images").iterdir()
    assert f"images/{saved.name}" in unnamed
    assert "art/square.png" in result and "PNG" in result
    assert (tmp_path / "workspace" / "art" / "square.png").read_bytes() == PNG
    assert "A red square." in str(server.asked[0].json)
    row, _ = [row for row in rows_of(tmp_path) if row["cause"] == "image"]
    assert (row["provider"], row["model"], row["outcome"]) == (provider, model, "ok")
    assert (row["prompt_tokens"], row["completion_tokens"], row["session"]) == (20, tokens, "cli:direct")


async def test_picture_behind_an_address_is_fetched_from_the_configured_server(tmp_path: Path):
    with FakeImages(by_url=True) as server:
        config = config_for(server, "custom", tools={"image": {"provider": "custom", "model": "flux"}})
        async with open_bot(tmp_path, config=config) as bot:
            await draw(bot, path="a.png")

    assert (tmp_path / "workspace" / "a.png").read_bytes() == PNG
    assert server.asked[0].json["model"] == "flux"


@pytest.mark.parametrize(
    ("config", "offered"),
    [
        ({}, False),
        ({"providers": {"anthropic": {"apiKey": "k"}}}, False),
        ({"providers": {"openai": {"apiKey": "k"}}}, True),
        ({"providers": {"gemini": {"apiKey": "k"}}}, True),
        ({"providers": {"openai": {"apiKey": "k"}}, "tools": {"image": {"enable": False}}}, False),
        ({"tools": {"image": {"provider": "gemini"}}}, False),
    ],
)
async def test_tool_is_offered_where_an_image_model_can_be_reached(
    tmp_path: Path, config: dict[str, Any], offered: bool
):
    async with open_bot(tmp_path, "hi", config=Config.model_validate(config)) as bot:
        await bot.say("hello")
        names = [tool["function"]["name"] for tool in bot.provider.tools[0]]

    assert ("image" in names) is offered


async def test_limit_refuses_a_picture_before_it_is_asked_for(tmp_path: Path, server: FakeImages):
    section = {"apiBase": f"{server.url}/v1", "apiKey": server.api_key}
    prices = {"gpt-image-1": {"input": 1_000_000, "output": 1_000_000}}
    config = Config.model_validate(
        {"providers": {"openai": {**section, "prices": prices}}, "limits": {"dailyUsd": 10, "unknownPrice": "allow"}}
    )
    async with open_bot(tmp_path, config=config) as bot:
        first = await draw(bot)
        second = await draw(bot)

    assert "Saved" in first
    assert "limits.dailyUsd" in second
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        ((401, "Incorrect API key provided"), "providers.openai.apiKey"),
        ((400, "Your request was rejected by the safety system"), "content filter"),
        ((400, "Unknown parameter: 'n'."), "tools.image.model"),
        ((404, "The model does not exist"), "tools.image.model"),
    ],
)
async def test_refusal_says_what_to_change_and_no_key(
    tmp_path: Path, server: FakeImages, refusal: tuple[int, str], says: str
):
    server.refusals.append(refusal)
    async with open_bot(tmp_path, config=config_for(server)) as bot:
        result = await draw(bot)

    assert says in result and refusal[1].rstrip(".") in result
    assert server.api_key not in result
    assert not (tmp_path / "workspace" / "images").exists()


async def test_what_is_no_picture_is_not_saved(tmp_path: Path):
    with FakeImages(image=b"<html>a portal</html>") as server:
        async with open_bot(tmp_path, config=config_for(server)) as bot:
            result = await draw(bot, path="a.png")

    assert "no image" in result
    assert not (tmp_path / "workspace" / "a.png").exists()
