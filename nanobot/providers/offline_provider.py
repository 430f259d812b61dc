"""A stand-in for a model, so that everything can be tried with no key and no network.

It understands about ten intents by their wording and answers each through a real call of a tool it is offered. INTENTS
is all it knows: a pattern, the call it leads to, and the sentence for what came back. It keeps nothing: what was asked
and what was found it reads from the messages, as a model does.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from nanobot.messages.shown import CONTEXT_MARK
from nanobot.messages.types import ChatMessage, Origin, ToolSchema, did_nothing, is_our_word, text_of
from nanobot.providers.answer import new_call_id
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

Words = re.Match[str]
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Intent:
    """Something it understands: how it is said, which call it takes, and how what came back is told."""

    pattern: str
    call: Callable[[Words], Call]
    tell: Callable[[Words, str], str]


def _lines(result: str) -> list[str]:
    return [line.strip() for line in result.splitlines() if line.strip()]


def _names(result: str) -> list[str]:
    """The names in a listing, without sizes and remarks."""
    rows = [line for line in _lines(result) if not line.startswith("(")]
    return [re.sub(r"\s+\(?[\d.,]+ ?[kKMGTi]*[bB](?:ytes?)?\)?$", "", row) for row in rows]


def _folder(words: Words) -> str:
    return _clean(words["named"] or words["path"] or words["folder"] or ".")


def _told_list(words: Words, result: str) -> str:
    names = _names(result)
    place = "Your workspace" if _folder(words) == "." else f"`{_folder(words)}`"
    if not names:
        return f"{place} is empty."
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"{place} holds: {', '.join(names[:20])}{more}."


def _told_quote(head: Callable[[Words], str]) -> Callable[[Words, str], str]:
    """A sentence, then the result itself, cut to what one reads in a chat."""

    def tell(words: Words, result: str) -> str:
        text = result.strip("\n")
        cut = f"{text[:3000]}\n…" if len(text) > 3000 else text
        return f"{head(words)}\n\n{cut}"

    return tell


_told_web = _told_quote(lambda words: f"This is what {words['url'] or words['bare_url']} says:")
_told_hits_whole = _told_quote(lambda words: f"The web says about `{_clean(words['what'] or words['query'])}`:")


def _told_page(words: Words, result: str) -> str:
    """The words of a page out of the JSON it comes in; of one that was cut on its way, what there is."""
    try:
        page = json.loads(result)
        text, status = str(page["text"]), int(page["status"])
    except (ValueError, KeyError, TypeError):
        return _told_web(words, result)
    told = _told_web(words, _without_banner(text))
    return f"The server answered {status}. {told}" if status >= 400 else told


def _told_hits(words: Words, result: str) -> str:
    return _told_hits_whole(words, _without_banner(result))


def _without_banner(text: str) -> str:
    """Without the line that tells a model whose words these are: a person knows."""
    return re.sub(r"\A\[From the web:[^\n]*\n+", "", text)


def _told_search(words: Words, result: str) -> str:
    rows = [line for line in _lines(result) if re.match(r".+?:\d+:", line)]
    what = _clean(words["what"])
    if not rows:
        return f"I found nothing for `{what}`."
    shown = "\n".join(rows[:10])
    times = "place" if len(rows) == 1 else "places"
    return f"I found `{what}` in {len(rows)} {times}:\n\n{shown}"


def _clean(text: str) -> str:
    """What was meant by a word in a sentence: without its quotes and the punctuation after it."""
    text = text.strip().rstrip("?!").strip()
    text = text[:-1] if text.endswith(".") and not text.endswith("..") and text != "." else text
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'`" else text


def _reminder(words: Words) -> Call:
    seconds = int(words["count"]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[words["unit"][0].lower()]
    message = _clean(words["message"] or words["message_first"] or "Time is up.")
    if words["every"].lower() == "every":
        return "cron", {"action": "add", "message": message, "every_seconds": seconds}
    from datetime import datetime, timedelta  # the one intent that knows the time

    at = datetime.now().astimezone() + timedelta(seconds=seconds)
    return "cron", {"action": "add", "message": message, "at": at.isoformat(timespec="seconds"), "deliver": True}


_FILE = r"(?P<file>[\"'`]?[\w./~\\-]*\.?[\w-]+\.\w+[\"'`]?)"
_PLEASE = r"(?:(?:please|hey|hi|ok(?:ay)?|nanobot|can you|could you|would you|will you|i want you to)[,:]?\s+)*"


def _command(text: str) -> str:
    quoted = re.fullmatch(r"\s*([`\"'])(.+)\1[.?!]*\s*", text, re.DOTALL)
    return quoted[2] if quoted else text.strip()


def _first_line(text: str) -> str:
    return next(iter(_lines(text)), "")


_URL = r"(?P<url>https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)])"
INTENTS: tuple[Intent, ...] = (
    Intent(
        rf".*\b(?:fetch|open|read|get|load|show|summari[sz]e|what)\b.*?{_URL}.*|{_URL.replace('<url>', '<bare_url>')}",
        lambda words: ("web_fetch", {"url": words["url"] or words["bare_url"]}),
        _told_page,
    ),
    Intent(
        r"remind me (?:(?:to|that|about) (?P<message_first>.+?) )?(?P<every>in|every|after) (?P<count>\d+)\s*"
        r"(?P<unit>s(?:ecs?|econds?)?|m(?:ins?|inutes?)?|h(?:ours?)?|d(?:ays?)?)\b[,:]?\s*"
        r"(?:(?:to|that|about|of)\s+)?(?P<message>.*)",
        _reminder,
        lambda _words, result: f"The reminder is set. {_first_line(result)}",
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
        _told_quote(lambda words: f"I ran `{_command(words['command'] or words['shell'])}`:"),
    ),
    Intent(
        r"(?:search|look)(?: up)? (?:on )?(?:the )?(?:web|internet|online)(?: for)?\s+(?P<what>.+)|"
        r"(?:google|web search(?: for)?)\s+(?P<query>.+)",
        lambda words: ("web_search", {"query": _clean(words["what"] or words["query"])}),
        _told_hits,
    ),
    Intent(
        r"(?:find|search for|look for|list)\s+(?:all )?(?:the )?(?:files? )?(?:named |called |matching |like )?"
        r"(?P<glob>[\"'`]?[\w./-]*[*?][\w.*?/-]*[\"'`]?)(?: files?)?[.?!]*",
        lambda words: ("glob", {"pattern": _clean(words["glob"])}),
        _told_quote(lambda words: f"These files fit `{_clean(words['glob'])}`:"),
    ),
    Intent(
        r"(?:search|grep|look|find)(?: (?:in )?(?:my |the |all )?(?:files|workspace|folder|directory))?(?: for)?\s+"
        r"(?P<what>.+?)(?: in (?:my |the |all )?(?:files|workspace|folder|directory))?[.?!]*",
        lambda words: ("grep", {"pattern": re.escape(_clean(words["what"]))}),
        _told_search,
    ),
    Intent(
        r"(?:read|show(?: me)?|open|print|cat|display|view|what(?:'s| is) in|what does|let me see|see)\s+"
        rf"(?:the )?(?:contents? of )?(?:the |my )?(?:file )?{_FILE}(?: say| contain)?[.?!]*",
        lambda words: ("read_file", {"path": _clean(words["file"])}),
        _told_quote(lambda words: f"This is {_clean(words['file'])}:"),
    ),
    Intent(
        r"(?:what is in|what's in|list|ls|show(?: me)?) (?:the )?"
        r"(?:(?:folder|directory) (?P<named>[\"'`]?[\w./-]+[\"'`]?)|(?P<path>[\"'`]?[\w.-]*/[\w./-]*[\"'`]?))[.?!]*|"
        r"(?:what(?:'s| is| are)?|which|list|show|see|give|tell|ls|dir)\b.*"
        r"\b(?:workspace|files?|folders?|director(?:y|ies)|here)\b.*|(?:ls|dir|list)(?: files)?[.?!]*|"
        r"(?:list|ls|what is in|what's in) (?P<folder>[\"'`]?[\w.-]+[\"'`]?)[.?!]*",
        lambda words: ("list_dir", {"path": _folder(words)}),
        _told_list,
    ),
)

_TOOLS = re.compile(_PLEASE + r"(?:what|which|list|show|name)\b.*\btools?\b.*", re.IGNORECASE | re.DOTALL)
_GREETING = re.compile(
    r"(?:hi|hello|hey|good (?:morning|day|evening))\b.{0,30}|(?:/?help|what can you do|what do you do|who are you)\W*",
    re.IGNORECASE,
)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    """Compiled when it is first asked for: all of them take as long as the answer to a greeting."""
    return re.compile(_PLEASE + f"(?:{text})", re.IGNORECASE | re.DOTALL)


class OfflineProvider(LLMProvider):
    """Stands in where no model can be reached. Deterministic, but for the ids of its calls."""

    name = "offline"

    def get_default_model(self) -> str:
        """The name it goes by."""
        return "offline"

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """A tool call, or a sentence or two about what came back. Never raises."""
        del model, max_tokens, temperature  # nothing here to choose or to sample
        answer = _answer(messages, {str(tool.get("function", {}).get("name")) for tool in tools or ()})
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0}
        if isinstance(answer, str):
            text = f"{answer}\n\n{NOTICE}"
            for piece in re.findall(r"(?s).{1,80}", text):
                yield TextDelta(piece)
            yield Finished(LLMResponse(text, usage=usage))
            return
        name, arguments = answer
        call = ToolCallRequest(new_call_id(), name, arguments)
        yield ToolCallDelta(0, name, call.to_message()["function"]["arguments"])
        yield Finished(LLMResponse(None, [call], "tool_calls", usage))


def _answer(messages: Sequence[ChatMessage], offered: set[str]) -> str | Call:
    """What to say, or what to call, to the last thing the person said."""
    asked_at = max((index for index, row in enumerate(messages) if _is_asked(row)), default=None)
    if asked_at is None:
        return ABILITIES
    said = text_of(messages[asked_at]["content"]).partition(f"\n{CONTEXT_MARK}")[0].strip()
    if call_context().cause == Origin.CRON:  # a reminder that was set without a model: its words are what was meant
        return f"Reminder: {said}"
    results = [row for row in messages[asked_at + 1 :] if row["role"] == "tool"]
    if _GREETING.fullmatch(said):
        return f"Hello! {ABILITIES}"
    if _TOOLS.fullmatch(said):
        names = ", ".join(sorted(offered))
        return f"My tools are: {names}." if names else "I have no tools at the moment."
    for intent in INTENTS:
        words = _pattern(intent.pattern).fullmatch(said)
        if words is not None:
            return _act(intent, words, results, offered)
    return f"I cannot answer that without a model. {ABILITIES}" if said else ABILITIES


def _is_asked(row: ChatMessage) -> bool:
    return row["role"] == "user" and not is_our_word(row)


def _act(intent: Intent, words: Words, results: list[ChatMessage], offered: set[str]) -> str | Call:
    name, arguments = intent.call(words)
    if "fact" in words.groupdict():
        return _remember(intent, words, results, offered)
    if not results:
        return (
            (name, arguments) if name in offered else f"I would need the tool `{name}` for that, and it is not there."
        )
    return _told(intent, words, results[-1])


def _told(intent: Intent, words: Words, result: ChatMessage) -> str:
    found = text_of(result["content"])
    return f"That did not work. {_first_line(found)}" if did_nothing(result) else intent.tell(words, found)


def _fact(words: Words) -> str:
    return _clean(words["fact"])


def _remember(intent: Intent, words: Words, results: list[ChatMessage], offered: set[str]) -> str | Call:
    """Read the memory, add a line behind its last one, say so. A memory that is not there yet is begun."""
    needed = {"read_file", "edit_file", "write_file"} - offered
    if needed:
        return f"I would need the tool `{min(needed)}` to remember that, and it is not there."
    if not results:
        return intent.call(words)
    if len(results) > 1:
        return _told(intent, words, results[-1])
    found = text_of(results[-1]["content"])
    line = f"- {_fact(words)}"
    lines = [re.sub(r"^\s*\d+(?:\t|[|:] ?)", "", row) for row in found.splitlines()]
    lines = [] if did_nothing(results[-1]) or found.startswith("(") else [row for row in lines if row.strip()]
    if line in lines:
        return f"I know already: {_fact(words)}."
    last = next((row for row in reversed(lines) if lines.count(row) == 1 and not row.startswith("(")), None)
    if last is None:
        return "write_file", {"path": MEMORY_FILE, "content": f"# Memory\n\n{line}\n"}
    joint = "\n\n" if last.startswith("#") else "\n"
    return "edit_file", {"path": MEMORY_FILE, "old_text": last, "new_text": f"{last}{joint}{line}"}
