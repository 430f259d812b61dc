"""A stand-in for a model, so that nanobot can be tried without a key and a network.

It recognises about ten intents by pattern and answers each with a real tool call. INTENTS is all it knows: a pattern,
the call, and the reply for its result. It is stateless: like a model, it reads everything from the messages.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from nanobot.messages.shown import CONTEXT_MARK, JOB_NOTE
from nanobot.messages.types import ChatMessage, Origin, ToolSchema, had_no_effect, is_synthetic, text_of
from nanobot.providers.base import (
    Delta,
    Finished,
    LLMProvider,
    LLMResponse,
    TextDelta,
    ToolCallDelta,
    ToolCallRequest,
    call_context,
)
from nanobot.providers.wire.answer import new_call_id

NOTICE = (
    "(No model is set up, so I only understand simple requests. To set one up, type `nanobot onboard`, "
    "or set a key in the environment, such as OPENAI_API_KEY.)"
)
ABILITIES = (
    "I can list your workspace, read or write a file, run a command, search your files or the web, fetch a page, "
    "remember something, set a reminder, and name my tools. For example: `What is in my workspace?`, "
    "`show me AGENTS.md`, `write hello to notes.txt`, `run ls -la`, `search for TODO`."
)
MEMORY_FILE = "memory/MEMORY.md"

Match = re.Match[str]
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Intent:
    """A request it recognises: its pattern, the tool call for it, and the reply to the result."""

    pattern: str
    call: Callable[[Match], Call]
    reply: Callable[[Match, str], str]


def _lines(result: str) -> list[str]:
    return [line.strip() for line in result.splitlines() if line.strip()]


def _names(result: str) -> list[str]:
    """The names in a listing, without sizes and notes."""
    rows = [line for line in _lines(result) if not line.startswith("(")]
    return [re.sub(r"\s+\(?[\d.,]+ ?[kKMGTi]*[bB](?:ytes?)?\)?$", "", row) for row in rows]


def _folder(match: Match) -> str:
    return _clean(match["named"] or match["path"] or match["folder"] or ".")


def _list_reply(match: Match, result: str) -> str:
    names = _names(result)
    label = "Your workspace" if _folder(match) == "." else f"`{_folder(match)}`"
    if not names:
        return f"{label} is empty."
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"{label} contains: {', '.join(names[:20])}{more}."


def _quote_reply(head: Callable[[Match], str]) -> Callable[[Match, str], str]:
    """A reply of one sentence and the result, truncated to what fits into a chat."""

    def reply(match: Match, result: str) -> str:
        text = result.strip("\n")
        cut = f"{text[:3000]}\n…" if len(text) > 3000 else text
        return f"{head(match)}\n\n{cut}"

    return reply


_web_reply = _quote_reply(lambda words: f"This is what {words['url'] or words['bare_url']} says:")
_search_hits_reply = _quote_reply(lambda words: f"The web says about `{_clean(words['what'] or words['query'])}`:")


def _page_reply(match: Match, result: str) -> str:
    """The text of the page in the tool's JSON; for JSON that was truncated, the raw result."""
    try:
        page = json.loads(result)
        text, status = str(page["text"]), int(page["status"])
    except (ValueError, KeyError, TypeError):
        return _web_reply(match, result)
    reply = _web_reply(match, _without_banner(text))
    return f"The server answered {status}. {reply}" if status >= 400 else reply


def _hits_reply(match: Match, result: str) -> str:
    return _search_hits_reply(match, _without_banner(result))


def _without_banner(text: str) -> str:
    """The text without the line that marks it as untrusted for a model."""
    return re.sub(r"\A\[From the web:[^\n]*\n+", "", text)


def _grep_reply(match: Match, result: str) -> str:
    rows = [line for line in _lines(result) if re.match(r".+?:\d+:", line)]
    query = _clean(match["what"])
    if not rows:
        return f"I found nothing for `{query}`."
    excerpt = "\n".join(rows[:10])
    times = "place" if len(rows) == 1 else "places"
    return f"I found `{query}` in {len(rows)} {times}:\n\n{excerpt}"


def _clean(text: str) -> str:
    """A value from a sentence, without quotes and trailing punctuation."""
    text = text.strip().rstrip("?!").strip()
    text = text[:-1] if text.endswith(".") and not text.endswith("..") and text != "." else text
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'`" else text


def _reminder(match: Match) -> Call:
    seconds = int(match["count"]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match["unit"][0].lower()]
    message = _clean(match["message"] or match["message_first"] or "Time is up.")
    if match["every"].lower() == "every":
        return "cron", {"action": "add", "message": message, "every_seconds": seconds}
    from datetime import datetime, timedelta  # only this intent needs the time

    at = datetime.now().astimezone() + timedelta(seconds=seconds)
    return "cron", {"action": "add", "message": message, "at": at.isoformat(timespec="seconds"), "deliver": True}


_FILE = r"(?P<file>[\"'`]?[\w./~\\-]*\.?[\w-]+\.\w+[\"'`]?)"
_PLEASE = r"(?:(?:please|hey|hi|ok(?:ay)?|nanobot|can you|could you|would you|will you|i want you to)[,:]?\s+)*"


def _command(text: str) -> str:
    quoted = re.fullmatch(r"\s*([`\"'])(.+)\1[.?!]*\s*", text, re.DOTALL)
    return quoted[2] if quoted else text.strip()


def _first_line(text: str) -> str:
    return next(iter(_lines(text)), "")


def _job_reply(result: str) -> str:
    """The job's first line, and the note that nothing runs it now, without the list of its next runs."""
    first, *others = _lines(result)
    return " ".join([first, *(line for line in others if not line.startswith(("Next run", "- ")))])


_URL = r"(?P<url>https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)])"
INTENTS: tuple[Intent, ...] = (
    Intent(
        rf".*\b(?:fetch|open|read|get|load|show|summari[sz]e|what)\b.*?{_URL}.*|{_URL.replace('<url>', '<bare_url>')}",
        lambda words: ("web_fetch", {"url": words["url"] or words["bare_url"]}),
        _page_reply,
    ),
    Intent(
        r"remind me (?:(?:to|that|about) (?P<message_first>.+?) )?(?P<every>in|every|after) (?P<count>\d+)\s*"
        r"(?P<unit>s(?:ecs?|econds?)?|m(?:ins?|inutes?)?|h(?:ours?)?|d(?:ays?)?)\b[,:]?\s*"
        r"(?:(?:to|that|about|of)\s+)?(?P<message>.*)",
        _reminder,
        lambda _words, result: f"The reminder is set. {_job_reply(result)}",
    ),
    Intent(
        r"(?:remember|note|keep in mind|don't forget|do not forget|memori[sz]e)(?: down)?(?: that| this)?[,:]?\s+"
        r"(?P<fact>.+)",
        lambda _words: ("read_file", {"path": MEMORY_FILE}),
        lambda words, _result: f"I will remember: {_fact(words)}. It is in {MEMORY_FILE} now.",
    ),
    Intent(
        r"(?:write|put|save|store)\s+(?P<content>.+?)\s+(?:to|into|in)\s+(?:(?:a|the) )?(?:(?:new )?file )?"
        rf"(?:called |named )?{_FILE}[.!?]*",
        lambda words: ("write_file", {"path": _clean(words["file"]), "content": f"{_clean(words['content'])}\n"}),
        lambda words, _result: f"I wrote `{_clean(words['content'])}` to {_clean(words['file'])}.",
    ),
    Intent(
        rf"(?:create|make|write) (?:a |the )?(?:new )?file (?:called |named )?{_FILE}"
        r"(?:,? (?:with(?: the (?:text|content|words))?|containing|that says|saying)[:,]? (?P<content>.+))?[.!]*",
        lambda words: ("write_file", {"path": _clean(words["file"]), "content": f"{_clean(words['content'] or '')}\n"}),
        lambda words, _result: f"I wrote {_clean(words['file'])}.",
    ),
    Intent(
        r"(?:run|execute|exec)\s+(?:the )?(?:(?:shell )?command:?\s+)?(?P<command>.+)|[$!]\s*(?P<shell>.+)",
        lambda words: ("exec", {"command": _command(words["command"] or words["shell"])}),
        _quote_reply(lambda words: f"I ran `{_command(words['command'] or words['shell'])}`:"),
    ),
    Intent(
        r"(?:search|look)(?: up)? (?:on )?(?:the )?(?:web|internet|online)(?: for)?\s+(?P<what>.+)|"
        r"(?:google|web search(?: for)?)\s+(?P<query>.+)",
        lambda words: ("web_search", {"query": _clean(words["what"] or words["query"])}),
        _hits_reply,
    ),
    Intent(
        r"(?:find|search for|look for|list)\s+(?:all )?(?:the )?(?:files? )?(?:named |called |matching |like )?"
        r"(?P<glob>[\"'`]?[\w./-]*[*?][\w.*?/-]*[\"'`]?)(?: files?)?[.?!]*",
        lambda words: ("glob", {"pattern": _clean(words["glob"])}),
        _quote_reply(lambda words: f"These files fit `{_clean(words['glob'])}`:"),
    ),
    Intent(
        r"(?:search|grep|look|find)(?: (?:in )?(?:my |the |all )?(?:files|workspace|folder|directory))?(?: for)?\s+"
        r"(?P<what>.+?)(?: in (?:my |the |all )?(?:files|workspace|folder|directory))?[.?!]*",
        lambda words: ("grep", {"pattern": re.escape(_clean(words["what"]))}),
        _grep_reply,
    ),
    Intent(
        r"(?:read|show(?: me)?|open|print|cat|display|view|what(?:'s| is) in|what does|let me see|see)\s+"
        rf"(?:the )?(?:contents? of )?(?:the |my )?(?:file )?{_FILE}(?: say| contain)?[.?!]*",
        lambda words: ("read_file", {"path": _clean(words["file"])}),
        _quote_reply(lambda words: f"This is {_clean(words['file'])}:"),
    ),
    Intent(
        r"(?:what is in|what's in|list|ls|show(?: me)?) (?:the )?"
        r"(?:(?:folder|directory) (?P<named>[\"'`]?[\w./-]+[\"'`]?)|(?P<path>[\"'`]?[\w.-]*/[\w./-]*[\"'`]?))[.?!]*|"
        r"(?:what(?:'s| is| are)?|which|list|show|see|give|tell|ls|dir)\b.*"
        r"\b(?:workspace|files?|folders?|director(?:y|ies)|here)\b.*|(?:ls|dir|list)(?: files)?[.?!]*|"
        r"(?:list|ls|what is in|what's in) (?P<folder>[\"'`]?[\w.-]+[\"'`]?)[.?!]*",
        lambda words: ("list_dir", {"path": _folder(words)}),
        _list_reply,
    ),
)

_TOOLS = re.compile(_PLEASE + r"(?:what|which|list|show|name)\b.*\btools?\b.*", re.IGNORECASE | re.DOTALL)
_GREETING = re.compile(
    r"(?:hi|hello|hey|good (?:morning|day|evening))\b.{0,30}|(?:/?help|what can you do|what do you do|who are you)\W*",
    re.IGNORECASE,
)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    """Compiled on first use: compiling all of them takes as long as answering a greeting."""
    return re.compile(_PLEASE + f"(?:{text})", re.IGNORECASE | re.DOTALL)


class OfflineProvider(LLMProvider):
    """Used when no model is available. Deterministic, except for the ids of its calls."""

    name = "offline"

    def get_default_model(self) -> str:
        return "offline"

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """Yield a tool call, or a sentence or two about its result. Never raises."""
        del model, max_tokens, temperature  # nothing to choose or sample here
        answer = _answer(messages, {str(tool.get("function", {}).get("name")) for tool in tools or ()})
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0}
        if isinstance(answer, str):
            text = f"{answer}\n\n{NOTICE}"
            for chunk in re.findall(r"(?s).{1,80}", text):
                yield TextDelta(chunk)
            yield Finished(LLMResponse(text, usage=usage))
            return
        name, arguments = answer
        call = ToolCallRequest(new_call_id(), name, arguments)
        yield ToolCallDelta(0, name, call.to_message()["function"]["arguments"])
        yield Finished(LLMResponse(None, [call], "tool_calls", usage))


def _answer(messages: Sequence[ChatMessage], offered: set[str]) -> str | Call:
    """The reply to the user's last message, or the tool call for it."""
    prompt_index = max((index for index, row in enumerate(messages) if _is_prompt(row)), default=None)
    if prompt_index is None:
        return ABILITIES
    prompt = text_of(messages[prompt_index]["content"]).partition(f"\n{CONTEXT_MARK}")[0].strip()
    if call_context().cause == Origin.CRON:  # a reminder that was set without a model: repeat its text
        return f"Reminder: {prompt.partition(JOB_NOTE)[0].strip()}"
    results = [row for row in messages[prompt_index + 1 :] if row["role"] == "tool"]
    if _GREETING.fullmatch(prompt):
        return f"Hello! {ABILITIES}"
    if _TOOLS.fullmatch(prompt):
        names = ", ".join(sorted(offered))
        return f"My tools are: {names}." if names else "I have no tools at the moment."
    for intent in INTENTS:
        match = _pattern(intent.pattern).fullmatch(prompt)
        if match is not None:
            return _act(intent, match, results, offered)
    return f"I cannot answer that without a model. {ABILITIES}" if prompt else ABILITIES


def _is_prompt(row: ChatMessage) -> bool:
    return row["role"] == "user" and not is_synthetic(row)


def _act(intent: Intent, match: Match, results: list[ChatMessage], offered: set[str]) -> str | Call:
    name, arguments = intent.call(match)
    if "fact" in match.groupdict():
        return _remember(intent, match, results, offered)
    if not results:
        return (name, arguments) if name in offered else f"I need the tool `{name}` for that, and it is not available."
    return _reply(intent, match, results[-1])


def _reply(intent: Intent, match: Match, result: ChatMessage) -> str:
    text = text_of(result["content"])
    return f"That did not work. {_first_line(text)}" if had_no_effect(result) else intent.reply(match, text)


def _fact(match: Match) -> str:
    return _clean(match["fact"])


def _remember(intent: Intent, match: Match, results: list[ChatMessage], offered: set[str]) -> str | Call:
    """Read the memory, append a line, confirm. Creates the memory file if there is none."""
    needed = {"read_file", "edit_file", "write_file"} - offered
    if needed:
        return f"I would need the tool `{min(needed)}` to remember that, and it is not available."
    if not results:
        return intent.call(match)
    if len(results) > 1:
        return _reply(intent, match, results[-1])
    text = text_of(results[-1]["content"])
    line = f"- {_fact(match)}"
    lines = [re.sub(r"^\s*\d+(?:\t|[|:] ?)", "", row) for row in text.splitlines()]
    lines = [] if had_no_effect(results[-1]) or text.startswith("(") else [row for row in lines if row.strip()]
    if line in lines:
        return f"I know already: {_fact(match)}."
    last = next((row for row in reversed(lines) if lines.count(row) == 1 and not row.startswith("(")), None)
    if last is None:
        return "write_file", {"path": MEMORY_FILE, "content": f"# Memory\n\n{line}\n"}
    separator = "\n\n" if last.startswith("#") else "\n"
    return "edit_file", {"path": MEMORY_FILE, "old_text": last, "new_text": f"{last}{separator}{line}"}
