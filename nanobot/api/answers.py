"""Reads what a turn shows, piece by piece and always in the same order, so that a client can go on where it was."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nanobot.agent.events import TurnOutcome
from nanobot.agent.feed import TurnView
from nanobot.api.options import answer_form


@dataclass(frozen=True, slots=True)
class Piece:
    """New text, or a tool call that ended (`tool`), or an open approval question (`approval`)."""

    text: str = ""
    starts: bool = False
    """Whether the text is the first of a paragraph of its own: after a tool call, or after another answer."""
    tool: dict[str, Any] | None = None
    approval: dict[str, Any] | None = None


class AnswerReader:
    """Reads the view of a turn. Texts come in order and are complete before what follows them."""

    def __init__(
        self, view: TurnView, *, first_part: int = 0, schema: dict[str, Any] | None = None, has_steps: bool = False
    ) -> None:
        """`first_part`: texts and tool calls to skip. `schema`: only the final answer counts, as JSON. `has_steps`:
        tool calls are shown in the text.
        """
        self.view = view
        self._form = answer_form(schema)
        self._has_steps = has_steps and self._form is None
        self._part = self._skip(first_part)
        self._delta = self._chars = 0
        self._shown: list[str] = []
        """The texts so far, each with all that continues it."""
        self._has_ended = False

    @property
    def part_count(self) -> int:
        """The texts and tool calls so far."""
        return sum(part["type"] in ("text", "tool") for part in self.view.parts)

    @property
    def is_complete(self) -> bool:
        """Whether everything was read."""
        return self._has_ended

    def read(self) -> Iterator[Piece]:
        """What is new. Ends at what has to be waited for, and at an open approval question."""
        while self._part < len(self.view.parts):
            part = self.view.parts[self._part]
            is_last = self._part == len(self.view.parts) - 1 and self.view.ended is None
            if part["type"] == "text":
                if text := self._new_text(part):
                    yield from self._say(text, continues=bool(part.get("continues")) or self._chars > len(text))
                if is_last:
                    return
            elif part["type"] == "tool":
                if "ok" not in part and self.view.ended is None:
                    return
                yield Piece(tool=part)
                if self._has_steps:
                    yield Piece(f"> {call_text(part)}", starts=True)
                if message := _own_message(part):
                    yield from self._say(message, continues=False)
            elif part["type"] == "approval" and "answer" not in part and self.view.ended is None:
                yield Piece(approval=part)
                return
            self._part, self._delta, self._chars = self._part + 1, 0, 0
        if self.view.ended is not None and not self._has_ended:
            self._has_ended = True
            yield from self._end(self.view.ended.text, self.view.ended.outcome)

    def _say(self, text: str, *, continues: bool) -> Iterator[Piece]:
        if self._form is not None:
            return
        starts = not (continues and self._shown)
        if starts:
            self._shown.append(text)
        else:
            self._shown[-1] += text
        yield Piece(text, starts)

    def _end(self, reply: str, outcome: TurnOutcome) -> Iterator[Piece]:
        """What the reply of the turn has and its texts have not, such as a note below the answer."""
        if outcome in (TurnOutcome.FAILED, TurnOutcome.REFUSED):
            return
        if self._form is not None:
            with suppress(ValueError):  # the request fails then
                yield Piece(json.dumps(self._form.parse(reply), ensure_ascii=False), starts=True)
            return
        last = self._shown[-1].strip() if self._shown else ""
        if not reply or "\n\n".join(text.strip() for text in self._shown).endswith(reply):
            return
        if outcome is TurnOutcome.STOPPED and last:
            return
        if last and reply.startswith(last):
            yield Piece(reply[len(last) :], starts=False)
        else:
            yield Piece(reply, starts=True)

    def _new_text(self, part: dict[str, Any]) -> str:
        deltas: list[str] = part["text"]
        was_joined = self._delta > 0 and len(deltas) == 1  # when the text ended
        new = deltas[0][self._chars :] if was_joined else "".join(deltas[self._delta :])
        self._delta = len(deltas)
        self._chars += len(new)
        return new

    def _skip(self, count: int) -> int:
        at = 0
        while count and at < len(self.view.parts):
            count -= self.view.parts[at]["type"] in ("text", "tool")
            at += 1
        return at


def call_text(tool: dict[str, Any]) -> str:
    """A tool call in one line: the same while it runs, later and after a restart."""
    first = next((str(value) for value in tool["arguments"].values()), "")
    return f'{tool["name"]} "{" ".join(first[:80].split())}"'


def sent_files(view: TurnView) -> list[str]:
    """The paths of the files that the agent sent with its answer."""
    messages = [part["arguments"] for part in view.parts if _own_message(part) is not None]
    return [path for arguments in messages for path in arguments.get("media") or ()]


def _own_message(part: dict[str, Any]) -> str | None:
    """The text that the `message` tool sent to the client itself; None if it sent nothing there."""
    if part["type"] != "tool" or part["name"] != "message" or not part.get("ok"):
        return None
    arguments = part["arguments"]
    return None if arguments.get("chat_id") else str(arguments.get("content", ""))
