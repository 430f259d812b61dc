"""The `web_fetch` tool: a page of the web as text."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.agent.tools.schema import integer, string, takes
from nanobot.agent.tools.web.pages import Page, read_body
from nanobot.agent.tools.web.policy import BANNER, WebPolicy
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance
from nanobot.security.fetching import Answer, Asked, Fetcher, FetchLimits
from nanobot.security.network import Gate
from nanobot.security.urls import UrlError, carries_data, parse_url
from nanobot.utils.text import human_size, sound_json

FETCH_S = 20.0
_READ_S = 10.0
"""Together the half minute after which nobody waits for a page any more."""
_ACCEPT = "text/html, application/xhtml+xml, application/json;q=0.9, text/*;q=0.9, */*;q=0.5"


class BodyReader(Protocol):
    """Reads what is no text: pictures, documents."""

    async def read(self, body: bytes, content_type: str) -> str | list[dict[str, Any]] | None:
        """Its text, or blocks for a model; None where it is of no kind it knows. Raises NanobotError."""
        ...


class WebFetchTool(Tool):
    """A page."""

    name = "web_fetch"
    description = "Fetch a page of the web as readable text."
    parameters = takes(
        "url",
        url=string(),
        extractMode=string("Default markdown", enum=["markdown", "text"]),
        maxChars=integer(minimum=100),
    )
    effect = Effect.READ
    provenance = Provenance.WEB

    def __init__(self, policy: WebPolicy, *, fetcher: Fetcher | None = None, reader: BodyReader | None = None) -> None:
        """`reader` is asked about pictures and documents."""
        self._max_chars = policy.max_chars
        self._reader = reader
        self._one_at_a_time = asyncio.Lock()  # a large page takes 40 MB while it is read
        self._fetcher = fetcher or Fetcher(
            Gate(policy.network),
            limits=FetchLimits(total_s=FETCH_S),
            find_secret=policy.find_secret,
            make_transport=policy.make_transport,
        )

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """The host, which the URL could carry words to."""
        try:
            url = parse_url(arguments["url"])
        except UrlError:
            return ()
        return (Reach(ReachKind.HOST, url.authority, detail=str(url), plain=not carries_data(url)),)

    async def execute(
        self,
        url: str,
        extractMode: str = "markdown",  # noqa: N803 - as models are told of it
        maxChars: int | None = None,  # noqa: N803
    ) -> ToolResult:
        """Fetch it and read it. Cancelling hangs up."""
        try:
            parse_url(url)
        except UrlError as error:
            return _failed(str(error), Provenance.TOOL)
        try:
            answer = await self._fetcher.fetch(Asked(url, {"Accept": _ACCEPT}))
            async with self._one_at_a_time, asyncio.timeout(_READ_S):
                return await self._told(url, answer, extractMode != "text", maxChars or self._max_chars)
        except TimeoutError:
            return _failed(f"The page {url[:200]} is made so that reading it takes too long. Fetch another.")
        except NanobotError as error:
            return _failed(str(error))

    async def _told(self, url: str, answer: Answer, markdown: bool, limit: int) -> ToolResult:
        header, kind = answer.headers.get("content-type", ""), answer.content_type
        page = await asyncio.to_thread(
            read_body, answer.body, kind, header, url=str(answer.url), markdown=markdown, limit=limit
        )
        blocks: list[dict[str, Any]] = []
        if page is None:
            page, blocks = await self._no_text(answer, kind or "of no known kind")
        text = page.text[:limit]
        told = {
            "url": url,
            "finalUrl": str(answer.url),
            "status": answer.status,
            "extractor": page.extractor,
            "truncated": answer.cut or page.cut or len(page.text) > limit,
            "length": len(text),
            "untrusted": True,
            "text": f"{BANNER}\n\n{text}",
        }
        said = sound_json(told, indent=1)
        content: str | list[dict[str, Any]] = [{"type": "text", "text": said}, *blocks] if blocks else said
        return ToolResult(
            content,
            error=answer.status >= 400,
            provenance=Provenance.WEB,
            display=f"{answer.status} {answer.url}\n\n{text}",
        )

    async def _no_text(self, answer: Answer, kind: str) -> tuple[Page, list[dict[str, Any]]]:
        """What can be told of a body that is no text."""
        size = human_size(len(answer.body))
        if answer.cut:
            return Page(f"This is {kind}, and more of it than is taken ({size}).", "none"), []
        read = await self._reader.read(answer.body, kind) if self._reader is not None else None
        if isinstance(read, str):
            return Page(read, "document"), []
        if read:
            return Page(f"{kind}, {size}", "image"), read
        hint = "Download it with exec (curl -L -o FILE URL), then read_file may read it."
        return Page(f"This is {kind} ({size}), and no text. {hint}", "none"), []


def _failed(text: str, provenance: Provenance = Provenance.WEB) -> ToolResult:
    return replace(ToolResult.failed(text), provenance=provenance)
