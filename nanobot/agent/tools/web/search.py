"""The `web_search` tool: asks a search engine, whichever is set up."""

import asyncio
from dataclasses import replace

from nanobot.agent.tools.base import Effect, Tool, ToolResult
from nanobot.agent.tools.schema import integer, string, takes
from nanobot.agent.tools.web.engines import MOST, Choice, EngineError, Found, asked, choices, results
from nanobot.agent.tools.web.policy import BANNER, WebPolicy
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance
from nanobot.security.fetching import Fetcher, FetchLimits
from nanobot.security.network import Gate

_SEARCH_S = 12.0
"""For one engine; the next is asked then."""


class WebSearchTool(Tool):
    """A search."""

    name = "web_search"
    description = "Search the web: titles, URLs and snippets."
    parameters = takes("query", query=string(), count=integer(minimum=1, maximum=MOST))
    effect = Effect.READ
    provenance = Provenance.WEB

    def __init__(self, policy: WebPolicy) -> None:
        self._count = policy.search.max_results
        self._choices = choices(policy.search)
        limits = FetchLimits(total_s=_SEARCH_S)
        # Where an engine is, the owner wrote into the config or the environment: that passes, wherever it leads.
        network = replace(policy.network, owned=tuple(choice.base for choice in self._choices))
        self._fetcher = Fetcher(
            Gate(network), limits=limits, find_secret=policy.find_secret, make_transport=policy.make_transport
        )

    async def execute(self, query: str, count: int | None = None) -> ToolResult:
        """Ask, one engine after the other until one answers. Cancelling hangs up."""
        wanted, failures = count or self._count, []
        if not query.strip():
            return ToolResult.failed("The query is empty. Say what to search for.")
        for choice in self._choices:
            try:
                answer = await self._fetcher.fetch(asked(choice, query.strip(), wanted))
                found = await asyncio.to_thread(results, choice, answer, wanted)
            except (EngineError, NanobotError) as error:
                failures.append(f"{choice.engine.name}: {str(error).rstrip('.')}.")
            else:
                return _told(query, choice, found, failures)
        advice = "Set up another in the config (tools.web.search), or fetch a page that is known with web_fetch."
        failed = ToolResult.failed(f"No search engine answered. {' '.join(failures)} {advice}")
        return replace(failed, provenance=Provenance.WEB)


def _told(query: str, choice: Choice, found: list[Found], failures: list[str]) -> ToolResult:
    notes = [note for note in (choice.note, *failures) if note]
    head = f"Results for `{query.strip()}` ({choice.engine.name}):" if found else f"{choice.engine.name} found nothing."
    rows = [
        "\n   ".join(line for line in (f"{number}. {one.title or one.url}", one.url, one.snippet) if line)
        for number, one in enumerate(found, 1)
    ]
    return ToolResult("\n\n".join([BANNER, *notes, head, *rows]))
