"""The `web_search` tool: asks a search engine."""

import asyncio
from dataclasses import replace

from nanobot.agent.tools.base import Effect, Tool, ToolResult, integer, string, takes
from nanobot.agent.tools.web.engines import (
    MAX_RESULTS,
    EngineChoice,
    EngineError,
    WebResult,
    choose_engines,
    make_request,
    parse_results,
)
from nanobot.agent.tools.web.policy import BANNER, WebPolicy
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance
from nanobot.net.egress import EgressGate
from nanobot.net.fetch import Fetcher, FetchLimits

_TIMEOUT_S = 12.0
"""Per engine; then the next one is asked."""


class WebSearchTool(Tool):
    name = "web_search"
    description = "Search the web; returns titles, URLs and snippets. Use web_fetch to read a page."
    parameters = takes(
        "query", query=string("Words to search for"), count=integer("Number of results", minimum=1, maximum=MAX_RESULTS)
    )
    effect = Effect.READ
    provenance = Provenance.WEB

    def __init__(self, policy: WebPolicy) -> None:
        self._count = policy.search.max_results
        self._choices = choose_engines(policy.search)
        limits = FetchLimits(total_s=_TIMEOUT_S)
        # The owner configured the engines' URLs: they are allowed, wherever they lead.
        network = replace(policy.network, owned=tuple(choice.base for choice in self._choices))
        self._fetcher = Fetcher(
            EgressGate(network), limits=limits, find_secret=policy.find_secret, connect=policy.connect
        )

    async def execute(self, query: str, count: int | None = None) -> ToolResult:
        """Ask one engine after the other until one answers. Cancelling closes the connection."""
        limit, failures = count or self._count, []
        if not query.strip():
            return ToolResult.failed("The query is empty. Say what to search for.")
        for choice in self._choices:
            try:
                answer = await self._fetcher.fetch(make_request(choice, query.strip(), limit))
                hits = await asyncio.to_thread(parse_results, choice, answer, limit)
            except (EngineError, NanobotError) as error:
                failures.append(f"{choice.engine.name}: {str(error).rstrip('.')}.")
            else:
                return _format(query, choice, hits, failures)
        advice = "Set up another in the config (tools.web.search), or fetch a known page with web_fetch."
        failed = ToolResult.failed(f"No search engine answered. {' '.join(failures)} {advice}")
        return replace(failed, provenance=Provenance.WEB)


def _format(query: str, choice: EngineChoice, hits: list[WebResult], failures: list[str]) -> ToolResult:
    notes = [note for note in (choice.note, *failures) if note]
    head = f"Results for `{query.strip()}` ({choice.engine.name}):" if hits else f"{choice.engine.name} found nothing."
    rows = [
        "\n   ".join(line for line in (f"{number}. {hit.title or hit.url}", hit.url, hit.snippet) if line)
        for number, hit in enumerate(hits, 1)
    ]
    return ToolResult("\n\n".join([BANNER, *notes, head, *rows]))
