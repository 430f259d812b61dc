"""The one contract for changing a memory: a model names edits of facts, code checks each and applies it in place.

What no edit names stays, byte for byte. An edit that breaks a rule is dropped with a reason. An answer that cannot be
parsed, or would lose many facts at once, changes nothing. Consolidation may add what was said; Dream may only use the
words of the facts and log entries that it names. No disk here.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from nanobot.agent.memory.facts import (
    BOM,
    ITEM,
    Fact,
    add_fact,
    fact_key,
    fact_words,
    find_headings,
    parse_facts,
    remove_facts,
)
from nanobot.agent.memory.revisions import is_like
from nanobot.errors import NanobotError, ProviderError
from nanobot.messages.types import ChatMessage, Provenance, ToolSchema, least_trusted
from nanobot.providers.base import LLMProvider, LLMResponse, error_from_response, parse_arguments
from nanobot.security.provenance import IN_PART
from nanobot.utils.text import clip_line

_MAX_TEXT_CHARS, _MAX_TIDY_TEXT_CHARS = 1_200, 400
_MAX_WHY_CHARS = 200
_FEW_FACTS = 3
"""Facts that may be lost at once: this many, or a third of a long memory; for Dream, half of a very short one."""
_SHOWN_CHARS = 60
_LINE_ENDS = re.compile("\r\n?|[\u2028\u2029]")
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2060\u2066-\u2069\ufeff\U000e0000-\U000e007f]")
"""Control characters, bidirectional marks and invisible characters."""
_REFUSAL = re.compile(
    r"\s*(?:\[[^\]\n]{0,40}\]\s*)?(?:"  # also after a stamp
    r"(?:i(?:'|’)m|i am) (?:very |so |really )?(?:sorry\b|afraid i\b|unable to\b|not able to\b)"
    r"|(?:sorry|apologies|unfortunately)\b[,.!:]? (?:but )?i\b"
    r"|i (?:can(?:'|’)?t|cannot|can not|won(?:'|’)?t|will not|must decline to) (?:help|assist|comply|provide"
    r"|fulfill?|process|summari[sz]e|save|continue|access|answer|complete|do th[ai][ts])\b"
    r"|as an ai\b"
    r"|(?:很?抱歉|对不起|不好意思)[,\uff0c\u3002!\uff01]?\s*(?:我|但)"
    r"|我(?:无法|不能|没办法)(?:协助|帮助|提供|完成|处理|满足|回答|继续|执行|总结)"
    r"|error(?::| \d{3}\b)|http(?: error)? \d{3}\b|traceback \(most recent|\{\s*\"error\"|<!doctype html"
    r")",
    re.IGNORECASE,
)
"""Start of a refusal or an error given instead of a text."""
_PLACEHOLDERS = frozenset({"none", "null", "n/a", "string", "history_entry", "memory_update"})
_NOT = re.compile(
    r"\b(?:not|no|never|none|nobody|nothing|without|cannot|nicht|keine?|jamais)\b|n['’]t\b|[不没沒無无非未]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FactEdit:
    """What becomes of the facts with these keys: `text` replaces the first of them, the others are removed.

    Without `text` all are removed, unless `under` is set: it names an existing heading that the text, or that of the
    first fact, moves to. Without keys `text` is added under that heading, which is created if necessary.
    """

    keys: tuple[str, ...] = ()
    text: str = ""
    under: str = ""
    is_archived: bool = False
    """Whether the removed facts go to the archive."""
    before: tuple[str, ...] = ()
    why: str = ""
    provenance: Provenance = Provenance.OWNER
    """The least trusted of its sources."""


def apply_edits(text: str, edits: Sequence[FactEdit], *, by_person: bool = False) -> tuple[str, list[FactEdit]]:
    """Apply the edits one by one. Return the new text and the edits that were applied.

    An edit is skipped if one of its facts or its heading is missing, if it would change how another fact is parsed, or
    if a fact is pinned, unless it comes from a person.
    """
    mark, body = (BOM, text[1:]) if text.startswith(BOM) else ("", text)
    done = []
    for edit in edits:
        changed = _apply_edit(body, edit, by_person=by_person)
        if changed is not None and not edit.keys and not _keeps_other_facts(body, changed, edit):
            changed = f"- {edit.text}\n\n{body}"  # a code block or comment before its place is not closed
        if changed is not None and _keeps_other_facts(body, changed, edit):
            body = changed
            done.append(edit)
    return mark + body, done


def edits_of_update(memory: str, update: str) -> list[FactEdit]:
    """Return the edits that lead from the facts of a memory to those of another text.

    A fact that came replaces the one that left with which it shares most words, at least half. Text that is no fact
    stays.
    """
    old = {fact.key: fact for fact in parse_facts(memory)}
    new = {fact.key: fact for fact in parse_facts(update)}
    left = {key: fact_words(fact.text) for key, fact in old.items() if key not in new}
    lines = update.splitlines()
    known = {name for _, name in find_headings(memory.splitlines())}
    headings = known | {name for at, name in find_headings(lines) if lines[at].lstrip().startswith("##")}
    edits = []
    for key, fact in new.items():
        under = fact.heading if fact.heading in headings else ""
        if key in old:
            if under and under != old[key].heading and under in known:
                edits.append(FactEdit((key,), under=under))
            continue
        words = fact_words(fact.text)
        shared = {other: len(words & others) / max(1, len(words), len(others)) for other, others in left.items()}
        nearest = max(shared, key=shared.__getitem__, default="")
        if nearest and shared[nearest] >= 0.5:
            del left[nearest]
            edits.append(FactEdit((nearest,), fact.text))
        else:
            edits.append(FactEdit((), fact.text, under))
    return [*edits, *(FactEdit((key,)) for key in left)]


def _apply_edit(text: str, edit: FactEdit, *, by_person: bool) -> str | None:
    """Return the text with one edit; None if it cannot be applied."""
    if not edit.keys:
        return add_fact(text, edit.under, edit.text)
    named = [fact for fact in parse_facts(text) if fact.key in edit.keys]
    if {fact.key for fact in named} != set(edit.keys) or (not by_person and any(fact.pinned for fact in named)):
        return None
    first, lines = named[0], text.splitlines(keepends=True)
    if edit.under:
        is_known = any(name == edit.under for _, name in find_headings(lines))
        return add_fact(remove_facts(text, named), edit.under, edit.text or first.text) if is_known else None
    if not edit.text:
        return remove_facts(text, named)
    begin, last = lines[first.begin], lines[first.end - 1]  # the new line looks like the first one
    item = ITEM.match(begin)
    lead = begin[: item.start(2)] if item else begin[: len(begin) - len(begin.lstrip())]
    lines[first.begin] = lead + edit.text + last[len(last.rstrip("\r\n")) :]
    cut = {at for fact in named for at in range(fact.begin, fact.end)} - {first.begin}
    return "".join(line for at, line in enumerate(lines) if at not in cut)


def _keeps_other_facts(before: str, after: str, edit: FactEdit) -> bool:
    """Whether all facts that the edit does not name are unchanged, and its new fact is there once."""
    expected = Counter(fact.key for fact in parse_facts(before) if fact.key not in edit.keys)
    actual = Counter(fact.key for fact in parse_facts(after) if fact.key not in edit.keys)
    key = fact_key(edit.text)
    if edit.text and key not in edit.keys:
        expected[key] += 1
    return actual == expected and actual[key] < 2


# --- what a model asks for


class EditAction(StrEnum):
    ADD = "add"
    REPLACE = "replace"
    DROP = "drop"
    ARCHIVE = "archive"
    MOVE = "move"


def edits_schema(*actions: EditAction) -> dict[str, Any]:
    return {
        "type": "array",
        "description": "The changes; empty if none are needed.",
        "items": {
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": [*actions]},
                "ids": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The facts it changes, such as f3.",
                },
                "text": {"type": "string", "description": "For add and replace: the new fact, on one line."},
                "under": {"type": "string", "description": "The heading it belongs under."},
                "why": {"type": "string", "description": "A few words."},
            },
            "required": ["action"],
        },
    }


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An entry of the log. `timestamp` is `YYYY-MM-DD HH:MM`, empty if the file has none."""

    timestamp: str
    content: str


class UnusableAnswerError(ProviderError):
    """A model's answer failed the checks."""


class _RefusedError(Exception):
    """An edit breaks a rule; the text says which."""


@dataclass(frozen=True, slots=True)
class KnownFact:
    """A fact with its age, its trust, and what a model may do with it."""

    fact: Fact
    since: str = ""
    provenance: Provenance = Provenance.OWNER
    by_hand: bool = False
    """Written by the owner, so Dream leaves it as it is."""
    is_old: bool = False
    """Older than the first revision, so it can be archived but not dropped."""


@dataclass(frozen=True, slots=True)
class EditRules:
    """What a model was shown, and what it may do with it."""

    memory: str
    facts: Sequence[KnownFact]
    entries: Sequence[HistoryEntry] = ()
    forgotten: Sequence[str] = ()
    tidies: bool = False
    """Whether it tidies what is known (Dream) instead of adding what was said."""

    def review(self, value: object) -> tuple[list[FactEdit], list[str]]:
        """Return the edits that may be applied, and why others were refused. Raises UnusableAnswerError if none can be
        applied, or too many facts go.
        """
        wanted = value
        if isinstance(wanted, str):  # some models send JSON text
            with suppress(ValueError):
                wanted = json.loads(wanted)
        if isinstance(wanted, dict):  # or a single edit
            wanted = [wanted]
        if not isinstance(wanted, list):
            raise UnusableAnswerError("The model's call has no list of edits.")
        edits: list[FactEdit] = []
        refused: list[str] = []
        for number, edit in enumerate(wanted, 1):
            try:
                edits.append(self._check(edit, edits))
            except _RefusedError as refusal:
                refused.append(f"edit {number}: {refusal}")
        knows_all = not self.tidies and all("already says" in refusal for refusal in refused)
        if wanted and not edits and not knows_all:
            raise UnusableAnswerError(f"No edit of the model's answer is allowed: {refused[0]}")
        self.check_losses(edits)
        return edits, refused

    def check_losses(self, edits: Sequence[FactEdit]) -> None:
        """Raise UnusableAnswerError if the edits would remove many facts at once."""
        removed = [max(len(edit.keys) - bool(edit.text), 0) for edit in edits if not (edit.under or edit.is_archived)]
        count = len(self.facts)
        few = max(1, min(_FEW_FACTS, count // 2)) if self.tidies else _FEW_FACTS
        if sum(removed) > max(few, count // 3):
            raise UnusableAnswerError(f"The model would remove {sum(removed)} facts from MEMORY.md at once.")

    def _check(self, wanted: object, earlier: Sequence[FactEdit]) -> FactEdit:
        """Return an edit, which comes after the `earlier` ones. Raises _RefusedError if it breaks a rule."""
        if not isinstance(wanted, Mapping):
            raise _RefusedError("it is not an object")
        values = ((name, wanted.get(name)) for name in ("action", "text", "under", "why"))
        given = {name: clean_text(value) if isinstance(value, str) else "" for name, value in values}
        action, under = given["action"].lower(), " ".join(given["under"].strip("# \t").split())
        if action not in {*EditAction} - ({EditAction.ADD} if self.tidies else set()):
            raise _RefusedError(f"there is no action {clip_line(str(wanted.get('action')), _SHOWN_CHARS)!r}")
        if action == EditAction.ADD:
            return FactEdit((), self._check_text(given["text"], [], []), clip_line(under, _SHOWN_CHARS))
        facts, entries = self._sources(wanted.get("ids"))
        for known in facts:
            shown = repr(clip_line(known.fact.text, _SHOWN_CHARS))
            if any(known.fact.key in edit.keys for edit in earlier):
                raise _RefusedError(f"another edit already names {shown}")
            if known.by_hand and self.tidies:
                raise _RefusedError(f"the owner wrote {shown} by hand")
            if known.fact.pinned:
                raise _RefusedError(f"{shown} is pinned")
        marks = [kind for entry in entries for kind, mark in IN_PART.items() if mark in entry.content]
        edit = FactEdit(
            tuple(known.fact.key for known in facts),
            before=tuple(known.fact.text for known in facts),
            why=clip_line(" ".join(given["why"].split()), _MAX_WHY_CHARS),
            provenance=least_trusted([*(known.provenance for known in facts), *marks]),
        )
        if action == EditAction.REPLACE:
            return replace(edit, text=self._check_text(given["text"], facts, entries))
        if action == EditAction.MOVE:
            shown = repr(clip_line(under, _SHOWN_CHARS))
            if under not in {name for _, name in find_headings(self.memory.splitlines())}:
                raise _RefusedError(f"there is no heading {shown}")
            if len(facts) != 1:
                raise _RefusedError("it moves several facts; move one at a time")
            if facts[0].fact.heading == under:
                raise _RefusedError(f"it changes nothing: the fact is already under {shown}")
            return replace(edit, under=under)
        if action == EditAction.DROP and not any(known.is_old for known in facts):
            if self.tidies and not edit.why:
                raise _RefusedError("it drops a fact without a reason")
            return edit
        archived = sum(len(other.keys) for other in earlier if other.is_archived) + len(facts)
        if archived > max(1, len(self.facts) // 2):
            raise _RefusedError("it would move half of the memory to the archive")
        return replace(edit, is_archived=True)

    def _sources(self, ids: object) -> tuple[list[KnownFact], list[HistoryEntry]]:
        names = re.split(r"[\s,]+", ids) if isinstance(ids, str) else ids if isinstance(ids, list) else []
        facts = {f"f{number}": known for number, known in enumerate(self.facts, 1)}
        entries = {f"h{number}": entry for number, entry in enumerate(self.entries, 1)}
        wanted = [*dict.fromkeys(name for id_ in names if (name := str(id_).strip(" []").lower()))]
        if missing := next((name for name in wanted if name not in facts and name not in entries), ""):
            raise _RefusedError(f"there is no {clip_line(missing, _SHOWN_CHARS)!r}")
        if not any(name in facts for name in wanted):
            raise _RefusedError("it names no fact")
        return [facts[name] for name in wanted if name in facts], [entries[name] for name in wanted if name in entries]

    def _check_text(self, text: str, facts: Sequence[KnownFact], entries: Sequence[HistoryEntry]) -> str:
        parsed = parse_facts(f"- {text}") if text else ()
        if len(parsed) != 1 or text.splitlines() != [text] or not parse_facts(text):
            raise _RefusedError("its text is not a single line of words")
        text, key = parsed[0].text, parsed[0].key
        shown = repr(clip_line(text, _SHOWN_CHARS))
        if len(text) > (limit := _MAX_TIDY_TEXT_CHARS if self.tidies else _MAX_TEXT_CHARS):
            raise _RefusedError(f"its text has {len(text)} characters; the limit is {limit}")
        if is_refusal(text):
            raise _RefusedError("its text is a refusal or an error")
        named_keys = [known.fact.key for known in facts]
        if named_keys == [key]:
            raise _RefusedError(f"it changes nothing: the fact already says {shown}")
        if key not in named_keys and any(known.fact.key == key for known in self.facts):
            raise _RefusedError(f"another fact already says {shown}")
        if not self.tidies:
            return text
        if unknown := find_unknown_word(text, [*(known.fact.text for known in facts), *(e.content for e in entries)]):
            raise _RefusedError(f"{unknown!r} is in none of its sources")
        for forgotten in self.forgotten:
            if is_like(text, forgotten) and not any(is_like(known.fact.text, forgotten) for known in facts):
                raise _RefusedError(f"{shown} was forgotten on purpose")
        return text


def find_unknown_word(text: str, sources: Sequence[str]) -> str:
    """Return a name, a number or a "not" of the text that no source has, or a note that its "not" was lost; empty if
    there is none. Names are capitalised; the first word may be any.
    """
    known = {word for source in sources for word in fact_key(source).split()}
    for at, word in enumerate(text.split()):
        is_name = at > 0 and word.lstrip("\"'([*_")[:1].isupper()
        for token in fact_key(word).split():
            if token not in known and (any(map(str.isdigit, token)) or (is_name and len(token) > 1)):
                return token
    denial, denied = _NOT.search(text), [_NOT.search(source) is not None for source in sources]
    if denial is not None and not any(denied):
        return denial[0].lower()
    return "the text without its negation" if denial is None and denied and all(denied) else ""


def clean_text(text: str) -> str:
    """Text of a model without characters that steer a screen or that only a model can read."""
    return _UNSEEN.sub("", _LINE_ENDS.sub("\n", text)).encode("utf-8", "replace").decode().strip()


def is_refusal(text: str) -> bool:
    """Whether a text is a refusal, an error or a placeholder instead of content."""
    return bool(_REFUSAL.match(text)) or text.strip(" .`\"'<>").lower() in _PLACEHOLDERS


async def ask_model(
    provider: LLMProvider, model: str, request: Sequence[ChatMessage], tool: ToolSchema, max_tokens: int
) -> LLMResponse:
    """Ask a model for a call of this tool. Raises ProviderError, whatever the provider raises. Cancelling is safe."""
    try:
        response = await provider.chat(
            messages=request, tools=[tool], model=model, max_tokens=max_tokens, temperature=0.1
        )
    except NanobotError:
        raise
    except Exception as error:  # a custom provider may raise anything; nothing is lost
        raise UnusableAnswerError(f"The model call failed: {type(error).__name__}: {error}") from error
    if response.finish_reason == "error":
        raise error_from_response(response)
    return response


def call_arguments(response: LLMResponse, name: str) -> Mapping[str, object]:
    """Return the arguments of the one call in an answer: an object, JSON text of one, or a list with one, as some
    servers send. Raises UnusableAnswerError.
    """
    if response.finish_reason == "length":
        raise UnusableAnswerError("The model's answer was cut off by the length limit.")
    calls = [call for call in response.tool_calls if call.name == name]
    if len(calls) != 1:
        raise UnusableAnswerError(f"The model called {name} {len(calls)} times instead of once.")
    arguments: object = calls[0].arguments
    problem = calls[0].problem
    if isinstance(arguments, str) and problem is None:
        arguments, problem = parse_arguments(arguments)
    if problem is not None:
        raise UnusableAnswerError(f"The model's {name} call cannot be read: {problem}.")
    if isinstance(arguments, list) and len(arguments) == 1:
        arguments = arguments[0]
    if not isinstance(arguments, dict):
        raise UnusableAnswerError(f"The model's {name} call has no object as arguments.")
    return arguments
