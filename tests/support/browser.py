"""A real Chromium, driven by Playwright, on the page of a gateway."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import Delta, Finished, LLMProvider, LLMResponse, TextDelta
from tests.support.running_gateway import Running
from tests.support.web_client import one_time_key

WAIT_MS = 15_000
"""How long a condition may take on a busy machine."""

EVIL_HOST = "evil.example"
"""A name of somebody else that leads to this machine, as after DNS rebinding."""


def chromium_program() -> str | None:
    """The system's Chromium; None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@asynccontextmanager
async def launched() -> AsyncIterator[Any]:
    """A running Chromium. Skips the test where none is installed."""
    playwright_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    program = chromium_program()
    if program is None:
        pytest.skip("chromium is not installed")
    async with playwright_api.async_playwright() as driver:
        options = ["--no-sandbox", f"--host-resolver-rules=MAP {EVIL_HOST} 127.0.0.1"]
        browser = await driver.chromium.launch(executable_path=program, args=options)
        try:
            yield browser
        finally:
            await browser.close()


class Tabs:
    """The tabs of one test. `problems` has what must not happen: errors, policy violations, requests elsewhere."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.other_hosts: set[str] = set()
        """Other sites that the test itself opens."""
        self._contexts: list[Any] = []

    async def device(self, url: str, **options: Any) -> Any:
        """A browser with cookies of its own, as another device has, for the page at this address."""
        context = await self.browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(WAIT_MS)
        self._contexts.append(context)
        own = urlsplit(url).netloc

        def on_request(request: Any) -> None:
            self.requests.append(request.url)
            if request.url.startswith(("blob:", "data:")):
                return
            if urlsplit(request.url).netloc not in {own, *self.other_hosts}:
                self.problems.append(f"a request left the origin: {request.url}")

        def note(tab: Any, problem: str) -> None:
            if urlsplit(tab.url).netloc == own:
                self.problems.append(problem)

        def on_console(message: Any) -> None:
            if message.type == "error" and not message.text.startswith("Failed to load resource"):
                note(message.page, message.text)

        context.on("request", on_request)
        context.on("console", on_console)
        context.on("weberror", lambda problem: note(problem.page, str(problem.error)))
        return context

    async def open(self, here: Running, path: str = "", *, context: Any = None, **options: Any) -> Any:
        """A tab of a signed-in device: a new one, or that of `context`."""
        url = page_url(here)
        device = context or await self.device(url, **options)
        tab = await device.new_page()
        await tab.goto(f"{url}/#{path}" if context else f"{url}/#k={await one_time_key(here)}")
        await tab.wait_for_selector(".composer textarea")
        if path and not context:
            await tab.evaluate("path => { location.hash = path }", path)
            await tab.wait_for_selector(".column > *", state="attached")
        return tab

    async def close(self) -> None:
        """Close all."""
        for context in self._contexts:
            await context.close()


def page_url(here: Running) -> str:
    """The address of the page."""
    return f"http://127.0.0.1:{here.gateway.http.port}"


async def say(tab: Any, text: str) -> None:
    """Write a message and send it."""
    await tab.fill(".composer textarea", text)
    await tab.click(".composer button[type=submit]")


class Typist(LLMProvider):
    """A model that streams these pieces, and waits at an event or for the seconds among them. Each answer is a list."""

    def __init__(self, *answers: Sequence[str | float | asyncio.Event]) -> None:
        super().__init__()
        self._answers = [*answers]
        self.requests: list[list[ChatMessage]] = []

    def get_default_model(self) -> str:
        return "typist"

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        self.requests.append([*messages])
        text = ""
        for piece in self._answers[min(len(self.requests), len(self._answers)) - 1]:
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            elif isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                text += piece
                yield TextDelta(piece)
        yield Finished(LLMResponse(text))
