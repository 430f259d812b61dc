"""A stand-in for a model, so that nanobot can be tried without a key and a network.

It recognises about ten intents by pattern and answers each with a real tool call. INTENTS is all it knows: a pattern,
the call, and the reply for its result. It is stateless: like a model, it reads everything from the messages.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from nanobot.messages.shown import CONTEXT_MARK, JOB_NOTE
from nanobot.messages.types import ChatMessage, Origin, had_no_effect, is_synthetic, text_of
from nanobot.providers.base import (
    Delta,
    Finished,
    LLMProvider,
    LLMResponse,
    ModelRequest,
    TextDelta,
    ToolCallDelta,
    ToolCallRequest,
    call_context,
    new_call_id,
)

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

Words = dict[str, str]
"""The parts of a request by name. A name in a pattern may end in underscores, since a pattern has each name once."""
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Intent:
    """A request it recognises: its pattern, the tool call for it, and the reply to the result."""

    pattern: str
    call: Callable[[Words], Call]
    reply: Callable[[Words, str], str]


def _clean(text: str) -> str:
    """A value from a sentence, without quotes and trailing punctuation."""
    text = text.strip().rstrip("?!").strip()
    text = text[:-1] if text.endswith(".") and not text.endswith("..") and text != "." else text
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'`" else text


def _lines(result: str) -> list[str]:
    return [line.strip() for line in result.splitlines() if line.strip()]


def _quote(head: str, result: str) -> str:
    """A sentence and the result, truncated to what fits into a chat."""
    text = re.sub(r"\A\[From the web:[^\n]*\n+", "", result).strip("\n")  # that line is for models
    return f"{head}\n\n{text[:3000]}{chr(10) + '…' if len(text) > 3000 else ''}"


def _list_reply(words: Words, result: str) -> str:
    rows = [line for line in _lines(result) if not line.startswith("(")]
    names = [re.sub(r"\s+\(?[\d.,]+ ?[kKMGTi]*[bB](?:ytes?)?\)?$", "", row) for row in rows]  # without sizes
    path = words.get("path", ".")
    label = "Your workspace" if path == "." else f"`{path}`"
    if not names:
        return f"{label} is empty."
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"{label} contains: {', '.join(names[:20])}{more}."


def _page_reply(words: Words, result: str) -> str:
    """The text of the page in the tool's JSON; for JSON that was truncated, the raw result."""
    head, status = f"This is what {words['url']} says:", 200
    with suppress(ValueError, KeyError, TypeError):
        page = json.loads(result)
        result, status = str(page["text"]), int(page["status"])
    return f"{f'The server answered {status}. ' if status >= 400 else ''}{_quote(head, result)}"


def _grep_reply(words: Words, result: str) -> str:
    rows = [line for line in _lines(result) if re.match(r".+?:\d+:", line)]
    if not rows:
        return f"I found nothing for `{words['what']}`."
    places = "place" if len(rows) == 1 else "places"
    return f"I found `{words['what']}` in {len(rows)} {places}:\n\n" + "\n".join(rows[:10])


def _reminder(words: Words) -> Call:
    seconds = int(words["count"]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[words["unit"][0].lower()]
    job = {"action": "add", "message": words.get("message") or "Time is up."}
    if words["every"].lower() == "every":
        return "cron", {**job, "every_seconds": seconds}
    from datetime import datetime, timedelta  # only this intent needs the time

    at = datetime.now().astimezone() + timedelta(seconds=seconds)
    return "cron", {**job, "at": at.isoformat(timespec="seconds"), "deliver": True}


def _reminder_reply(_words: Words, result: str) -> str:
    """The job's first line, and the note that nothing runs it now, without the list of its next runs."""
    first, *others = _lines(result)
    notes = [line for line in others if not line.startswith(("Next run", "- "))]
    return " ".join(["The reminder is set.", first, *notes])


_FILE = r"(?P<file>[\"'`]?[\w./~\\-]*\.?[\w-]+\.\w+[\"'`]?)"
_PLEASE = r"(?:(?:please|hey|hi|ok(?:ay)?|nanobot|can you|could you|would you|will you|i want you to)[,:]?\s+)*"
_URL = r"(?P<url>https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)])"
INTENTS: tuple[Intent, ...] = (
    Intent(
        rf".*\b(?:fetch|open|read|get|load|show|summari[sz]e|what)\b.*?{_URL}.*|{_URL.replace('<url>', '<url_>')}",
        lambda words: ("web_fetch", {"url": words["url"]}),
        _page_reply,
    ),
    Intent(
        r"remind me (?:(?:to|that|about) (?P<message_>.+?) )?(?P<every>in|every|after) (?P<count>\d+)\s*"
        r"(?P<unit>s(?:ecs?|econds?)?|m(?:ins?|inutes?)?|h(?:ours?)?|d(?:ays?)?)\b[,:]?\s*"
        r"(?:(?:to|that|about|of)\s+)?(?P<message>.*)",
        _reminder,
        _reminder_reply,
    ),
    Intent(
        r"(?:remember|note|keep in mind|don't forget|do not forget|memori[sz]e)(?: down)?(?: that| this)?[,:]?\s+"
        r"(?P<fact>.+)",
        lambda _words: ("read_file", {"path": MEMORY_FILE}),
        lambda words, _result: f"I will remember: {words['fact']}. It is in {MEMORY_FILE} now.",
    ),
    Intent(
        r"(?:write|put|save|store)\s+(?P<content>.+?)\s+(?:to|into|in)\s+(?:(?:a|the) )?(?:(?:new )?file )?"
        rf"(?:called |named )?{_FILE}[.!?]*",
        lambda words: ("write_file", {"path": words["file"], "content": f"{words['content']}\n"}),
        lambda words, _result: f"I wrote `{words['content']}` to {words['file']}.",
    ),
    Intent(
        rf"(?:create|make|write) (?:a |the )?(?:new )?file (?:called |named )?{_FILE}"
        r"(?:,? (?:with(?: the (?:text|content|words))?|containing|that says|saying)[:,]? (?P<content>.+))?[.!]*",
        lambda words: ("write_file", {"path": words["file"], "content": f"{words.get('content', '')}\n"}),
        lambda words, _result: f"I wrote {words['file']}.",
    ),
    Intent(
        r"(?:run|execute|exec)\s+(?:the )?(?:(?:shell )?command:?\s+)?(?P<command>.+)|[$!]\s*(?P<command_>.+)",
        lambda words: ("exec", {"command": words["command"]}),
        lambda words, result: _quote(f"I ran `{words['command']}`:", result),
    ),
    Intent(
        r"(?:search|look)(?: up)? (?:on )?(?:the )?(?:web|internet|online)(?: for)?\s+(?P<what>.+)|"
        r"(?:google|web search(?: for)?)\s+(?P<what_>.+)",
        lambda words: ("web_search", {"query": words["what"]}),
        lambda words, result: _quote(f"The web says about `{words['what']}`:", result),
    ),
    Intent(
        r"(?:find|search for|look for|list)\s+(?:all )?(?:the )?(?:files? )?(?:named |called |matching |like )?"
        r"(?P<glob>[\"'`]?[\w./-]*[*?][\w.*?/-]*[\"'`]?)(?: files?)?[.?!]*",
        lambda words: ("glob", {"pattern": words["glob"]}),
        lambda words, result: _quote(f"These files fit `{words['glob']}`:", result),
    ),
    Intent(
        r"(?:search|grep|look|find)(?: (?:in )?(?:my |the |all )?(?:files|workspace|folder|directory))?(?: for)?\s+"
        r"(?P<what>.+?)(?: in (?:my |the |all )?(?:files|workspace|folder|directory))?[.?!]*",
        lambda words: ("grep", {"pattern": re.escape(words["what"])}),
        _grep_reply,
    ),
    Intent(
        r"(?:read|show(?: me)?|open|print|cat|display|view|what(?:'s| is) in|what does|let me see|see)\s+"
        rf"(?:the )?(?:contents? of )?(?:the |my )?(?:file )?{_FILE}(?: say| contain)?[.?!]*",
        lambda words: ("read_file", {"path": words["file"]}),
        lambda words, result: _quote(f"This is {words['file']}:", result),
    ),
    Intent(
        r"(?:what is in|what's in|list|ls|show(?: me)?) (?:the )?"
        r"(?:(?:folder|directory) (?P<path>[\"'`]?[\w./-]+[\"'`]?)|(?P<path_>[\"'`]?[\w.-]*/[\w./-]*[\"'`]?))[.?!]*|"
        r"(?:what(?:'s| is| are)?|which|list|show|see|give|tell|ls|dir)\b.*"
        r"\b(?:workspace|files?|folders?|director(?:y|ies)|here)\b.*|(?:ls|dir|list)(?: files)?[.?!]*|"
        r"(?:list|ls|what is in|what's in) (?P<path__>[\"'`]?[\w.-]+[\"'`]?)[.?!]*",
        lambda words: ("list_dir", {"path": words.get("path", ".")}),
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

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Yield a tool call, or a sentence or two about its result. Never raises."""
        answer = _answer(request.messages, {str(tool.get("function", {}).get("name")) for tool in request.tools})
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
    prompts = (index for index, row in enumerate(messages) if row["role"] == "user" and not is_synthetic(row))
    prompt_index = max(prompts, default=None)
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
            groups = {name.rstrip("_"): value for name, value in match.groupdict().items() if value}
            words = {name: _clean(value) for name, value in groups.items()}
            if "command" in groups:  # its punctuation counts
                quoted = re.fullmatch(r"\s*([`\"'])(.+)\1[.?!]*\s*", groups["command"], re.DOTALL)
                words["command"] = quoted[2] if quoted else groups["command"].strip()
            return _act(intent, words, results, offered)
    return f"I cannot answer that without a model. {ABILITIES}" if prompt else ABILITIES


def _act(intent: Intent, words: Words, results: list[ChatMessage], offered: set[str]) -> str | Call:
    """The next tool call of a request, or the reply to the last result."""
    remembers = "fact" in words
    needed = {"read_file", "edit_file", "write_file"} if remembers else {intent.call(words)[0]}
    if not results and (missing := needed - offered):
        return f"I need the tool `{min(missing)}` for that, and it is not available."
    if not results:
        return intent.call(words)
    text = text_of(results[-1]["content"])
    if remembers and len(results) == 1:
        return _remember(words["fact"], [] if had_no_effect(results[0]) else text.splitlines())
    if had_no_effect(results[-1]):
        return f"That did not work. {next(iter(_lines(text)), '')}"
    return intent.reply(words, text)


def _remember(fact: str, memory: list[str]) -> str | Call:
    """Append a line to the memory as it was read. Creates the file if there is none."""
    line = f"- {fact}"
    rows = [re.sub(r"^\s*\d+(?:\t|[|:] ?)", "", row) for row in memory if not row.startswith("(")]
    rows = [row for row in rows if row.strip()]
    if line in rows:
        return f"I know already: {fact}."
    last = next((row for row in reversed(rows) if rows.count(row) == 1), None)
    if last is None:
        return "write_file", {"path": MEMORY_FILE, "content": f"# Memory\n\n{line}\n"}
    separator = "\n\n" if last.startswith("#") else "\n"
    return "edit_file", {"path": MEMORY_FILE, "old_text": last, "new_text": f"{last}{separator}{line}"}
