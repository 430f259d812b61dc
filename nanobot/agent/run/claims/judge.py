"""Does an answer claim an action that no tool performed? "I have created the file", and there is no file.

A claim is a sentence that says something was done, is being done or is about to be; it is founded where a tool that
can do it was called. Only two languages are judged, English and Chinese, and only plain words of the speaker: no
questions, offers, conditions, quotes, code, or texts that were asked for. Whatever is in doubt is honest.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

from nanobot.agent.run.claims.chinese import CHINESE
from nanobot.agent.run.claims.english import ENGLISH
from nanobot.agent.run.claims.words import DEEDS, FILE, KNOWN_TOOLS, LATER, Language, Speech, Wording
from nanobot.agent.tools.spawn import RESULT, WITHHELD
from nanobot.messages.types import ChatMessage, Origin, did_nothing, is_our_word, text_of

_FENCED = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_QUOTED_LINE = re.compile(r"^ {0,3}>.*$", re.MULTILINE)
_TABLE_LINE = re.compile(r"^\s*\|.*\|\s*$", re.MULTILINE)
_INLINE_CODE = re.compile(r"`([^`\n]*)`")
_QUOTED = re.compile(
    r"“[^”\n]{1,300}”|\"[^\"\n]{1,300}\"|「[^」\n]{1,300}」|『[^』\n]{1,300}』|‘[^’\n]{1,300}’|(?<=\s)'[^'\n]{1,300}'(?=[\s.,;:!?]|$)"
)
_MARKS = re.compile(r"[*_#]{1,3}(?=\S)|(?<=\S)\*{1,3}|^[ \t]*(?:[-*+•]|\d{1,2}[.)、])[ \t]+", re.MULTILINE)
_SENTENCE = re.compile(r"(?:[^.!?。！？；;\n]|[.](?=\w)|[.!?](?=[\"”’)]))+[.!?。！？；;…]*|\n")
_KANA = re.compile(r"[\u3040-\u30ff\uac00-\ud7af]")
_HAN = re.compile(r"[\u4e00-\u9fff]")
_LATIN_WORD = re.compile(r"[A-Za-z]{2,}")

_GIVEN = re.compile(re.escape(RESULT).replace(r"\{id\}", "[0-9a-f]+"))
_PATH = Wording(FILE)

_DOUBT = "You wrote: "
_MOST_CHARS = 20_000
_LONGEST_SENTENCE = 400
_LONGEST_FINISH = 60
_REQUEST_CHARS = 1_000
_STALLS_WITHIN = 2
"""A promise is one if so many sentences at most stand behind it: behind others stands what was promised."""
_SHORT_ANSWER = 160


def unfounded_claim(
    text: str,
    request: str,
    tools_called: Collection[str],
    tools_available: Collection[str],
    called_before: Collection[str] = (),
) -> str | None:
    """The first sentence of a final answer that claims an action no tool performed; None where the answer is honest.

    `request` is what the person said last; `tools_called` names the tools that did something since then, and
    `called_before` those of earlier turns (see `performed`). Without any tool to keep it with, a promise is only talk.
    """
    if any(name not in KNOWN_TOOLS for name in tools_called):
        return None  # a tool of somebody else's may do anything
    language = _language_of(text)
    if language is None:
        return None
    return _Answer(language, text, request, frozenset(tools_called), bool(tools_available), called_before).claim()


def claim_in(
    text: str, rows: Sequence[ChatMessage], turn_id: str, tools_available: Collection[str]
) -> tuple[str | None, frozenset[str]]:
    """The same for the answer of this turn, its rows at the end of `rows`; and the tools that did something in it."""
    mine = [row for row in rows if row.get("turn_id") == turn_id]
    older = [row for row in rows if row.get("turn_id") != turn_id]
    asked = [row for row in mine if row["role"] == "user" and not is_our_word(row)]
    called = performed(mine)
    done, before = called | _delegated(mine, tools_available), performed(older) | _delegated(older, tools_available)
    request = text_of(asked[-1]["content"]) if asked else ""
    return unfounded_claim(text, request, done, tools_available, before), called


def performed(rows: Iterable[ChatMessage]) -> frozenset[str]:
    """The names of the tools that did something, by their rows: also those that came to no good end in doing it."""
    names = {str(row.get("name")) for row in rows if row["role"] == "tool" and not did_nothing(row)}
    return frozenset("message" if name == "message_user" else name for name in names)


def _delegated(rows: Iterable[ChatMessage], tools_available: Collection[str]) -> frozenset[str]:
    """The tools of subagents that have told what they did: nobody sees here which of them they used."""
    heard = any(
        row.get("origin") == Origin.SUBAGENT
        if row["role"] == "user"
        else row.get("name") == "spawn" and not row.get("failure") and _GIVEN.match(text_of(row["content"]))
        for row in rows
    )
    return frozenset(tools_available) - WITHHELD if heard else frozenset()


def one_more_step(claim: str, tools_available: Sequence[str]) -> str:
    """What the model is told, so that it does what it said or says that it did not."""
    with_what = f" Your tools: {', '.join(tools_available)}." if tools_available else ""
    return (
        f'{_DOUBT}"{claim}" But no tool call of this turn did that, so it has not happened. '
        "If it should be done, do it now, with a tool call and without announcing it. "
        f"If it cannot or need not be done, answer again and say plainly that it was not done.{with_what}"
    )


def is_doubt(row: ChatMessage) -> bool:
    """Whether this row is `one_more_step`."""
    return row.get("role") == "user" and is_our_word(row) and text_of(row.get("content")).startswith(_DOUBT)


def nothing_was_done(text: str, tools_called: Collection[str]) -> str:
    """The line for the person, behind an answer that claims it all the same; in the language of the answer."""
    language = _language_of(text) or ENGLISH
    return language.only_these.format(tools=", ".join(sorted(tools_called))) if tools_called else language.nothing_done


def _language_of(text: str) -> Language | None:
    """The language of an answer; None for those we cannot judge."""
    bare = _FENCED.sub(" ", text[:_MOST_CHARS])
    if _KANA.search(bare):
        return None
    han = len(_HAN.findall(bare))
    latin = len(_LATIN_WORD.findall(bare))
    if han * 2 >= latin and han:
        return CHINESE
    return ENGLISH if latin else None


class _Answer:
    """One answer, and what it is judged by."""

    def __init__(
        self,
        language: Language,
        text: str,
        request: str,
        called: frozenset[str],
        has_tools: bool,
        before: Collection[str],
    ) -> None:
        self._language = language
        self._sentences = _sentences(text)
        self._shows = "```" in text or bool(_TABLE_LINE.search(text[:_MOST_CHARS]))
        self._request = request[:_REQUEST_CHARS]
        self._called = called
        self._has_tools = has_tools
        self._before = frozenset(before)

    def claim(self) -> str | None:
        for index, sentence in enumerate(self._sentences):
            if len(sentence) <= _LONGEST_SENTENCE and (self._says_done(sentence) or self._promises(index)):
                return None if self._words_only else sentence
        return None

    def _says_done(self, sentence: str) -> bool:
        words = self._language
        if len(sentence) <= _LONGEST_FINISH and words.finished.found_in(sentence):
            return bool(self._asked) and not self._called
        found = {deed for clause in words.clause.pattern.split(sentence) for deed in self._done_in(clause, sentence)}
        if not found or self._founded(found) or words.condition.found_in(sentence) or words.past.found_in(sentence):
            return False
        mentioned_before = not self._asked or words.already.found_in(sentence)
        return not (mentioned_before and any(DEEDS[deed] & self._before for deed in found))

    def _done_in(self, clause: str, sentence: str) -> set[str]:
        words = self._language
        found = {deed for deed in _stated(words.says_done, clause) if self._is_real(deed, sentence)}
        found |= {deed for deed in _stated(words.is_done, clause) & self._asked if self._is_real(deed, sentence)}
        return set() if found and words.taken_back.found_in(clause) else found

    def _is_real(self, deed: str, sentence: str) -> bool:
        """Whether a deed is one out there, not one in the answer itself: code or a table that stands there."""
        asked = deed in self._asked
        if self._shows:
            thing = _PATH if deed == "write" else self._language.things[deed]
            return asked and thing.found_in(sentence)
        return asked or self._language.things[deed].found_in(sentence)

    def _promises(self, index: int) -> bool:
        words, sentence = self._language, self._sentences[index]
        if not self._has_tools or self._called & LATER or not self._is_last_word(index):
            return False
        if words.stalling.found_in(sentence):
            return not self._founded({"work"}) and not words.open_ended.found_in(
                words.stalling.pattern.sub("", sentence)
            )
        found = {deed for deed in _stated(words.is_coming, sentence) if self._is_due(deed, sentence)}
        if not found or self._founded(found) or words.open_ended.found_in(sentence):
            return False
        return not self._asked_in.would.found_in(self._own_request)

    def _is_due(self, deed: str, sentence: str) -> bool:
        words = self._language
        return (
            deed in {*self._asked, "look"} or words.things[deed].found_in(sentence) or words.at_once.found_in(sentence)
        )

    def _is_last_word(self, index: int) -> bool:
        """Whether the answer ends with this: no question, and nothing that would keep the promise, stands behind it."""
        behind = self._sentences[index + 1 :]
        if self._shows or len(behind) > _STALLS_WITHIN or sum(map(len, behind)) > _SHORT_ANSWER:
            return False
        return not _leads_on(self._sentences[index]) and not any(map(_asks, self._sentences))

    def _founded(self, deeds: Iterable[str]) -> bool:
        return any(DEEDS[deed] & self._called for deed in deeds)

    @cached_property
    def _asked_in(self) -> Language:
        return CHINESE if _HAN.search(self._request) else ENGLISH

    @cached_property
    def _own_request(self) -> str:
        return _without_quotes(self._request)

    @cached_property
    def _about_past(self) -> bool:
        return self._asked_in.about_past.found_in(self._own_request)

    @cached_property
    def _asked(self) -> frozenset[str]:
        """What the person wants done; nothing where it is words they want, or news of what was done before."""
        return frozenset() if self._about_past else _deeds_asked(self._asked_in, self._own_request)

    @cached_property
    def _words_only(self) -> bool:
        """Whether a text is wanted, in which anybody may say anything, and no more than that."""
        words = self._asked_in
        if not words.words_wanted.found_in(self._request):
            return False
        return not (words.for_keeps.found_in(self._own_request) and _deeds_asked(words, self._own_request))


def _stated(speeches: Iterable[Speech], clause: str) -> frozenset[str]:
    return frozenset[str]().union(*(speech.deeds_in(clause) for speech in speeches))


def _deeds_asked(words: Language, request: str) -> frozenset[str]:
    """What a request asks to be done; nothing where it asks for words."""
    if words.not_asked.found_in(request):
        return frozenset()
    return frozenset(deed for deed, asked in words.asked.items() if asked.found_in(request))


def _without_quotes(text: str) -> str:
    """Code and quotes are somebody else's words; what looks like the name of a file stays."""
    text = _INLINE_CODE.sub(lambda code: "CODE" if " " in code[1].strip() else code[1], text)
    return _QUOTED.sub(lambda quote: quote[0] if "." in quote[0] and " " not in quote[0] else "QUOTE", text)


def _sentences(text: str) -> list[str]:
    """The speaker's own sentences: no code, no quotes, no tables."""
    text = _FENCED.sub("\n", text[:_MOST_CHARS])
    text = _TABLE_LINE.sub("", _QUOTED_LINE.sub("", text))
    text = _MARKS.sub("", _without_quotes(text))
    found = (sentence.strip() for sentence in _SENTENCE.findall(text))
    return [sentence for sentence in found if re.search(r"\w", sentence)]


def _asks(sentence: str) -> bool:
    return sentence.rstrip(" )）*_").endswith(("?", "？"))


def _leads_on(sentence: str) -> bool:
    """Whether what was promised stands in the same sentence: "Let me check: 17 times 23 is 391." """
    _, colon, behind = sentence.replace("：", ":").partition(":")
    return bool(colon) and len(behind.strip()) > 0 and not behind.startswith("//")
