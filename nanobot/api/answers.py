"""What a turn shows, as the answer to a request: read piece by piece, always in the same order, so that a client can go
on where it was; and how it ended, also as an error, in the words of OpenAI's API.
"""

import json
import mimetypes
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse, Response

from nanobot.agent.events import TurnEnded, TurnOutcome
from nanobot.agent.feed import TurnView
from nanobot.api.requests import answer_form
from nanobot.security.http_access import HEADERS, HttpError

_TYPES = {401: "authentication_error", 403: "permission_error", 409: "conflict_error", 429: "rate_limit_error"}
_CODES = {404: "not_found", 413: "too_large", 415: "unsupported_media", 503: "unavailable"}
NO_RETRY = {"x-should-retry": "false"}
"""Header that keeps OpenAI's clients from sending a request again by themselves."""


def error_fields(error: HttpError) -> dict[str, Any]:
    """An error in OpenAI's words."""
    kind = "server_error" if error.status >= 500 else _TYPES.get(error.status, "invalid_request_error")
    if error.code == "spending_limit":
        kind = "insufficient_quota"
    code = error.code or _CODES.get(error.status)
    return {"message": str(error), "type": kind, "param": error.param, "code": code}


def error_response(error: HttpError) -> Response:
    return JSONResponse({"error": error_fields(error)}, error.status, {**HEADERS, **error.headers})


_FAILURES = {
    "BudgetExceededError": (429, "spending_limit", None),
    "RequestTooLongError": (400, "context_length_exceeded", "messages"),
    "HookDenied": (403, "denied", None),
    "StorageError": (503, "storage_error", None),
}
"""By the error of a turn: status, code and param."""
_SHOWN = ("text", "tool")


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
        self.is_complete = False
        """Whether everything was read."""
        self._form = answer_form(schema)
        self._has_steps = has_steps and self._form is None
        shown = [at for at, part in enumerate(view.parts) if part["type"] in _SHOWN]
        self._part = shown[min(first_part, len(shown)) - 1] + 1 if first_part and shown else 0
        self._deltas = self._chars = 0
        """Read of the text that grows."""
        self._paragraphs: list[str] = []

    def read(self) -> Iterator[Piece]:
        """What is new. Ends at what has to be waited for, and at an open approval question."""
        parts, ended = self.view.parts, self.view.ended
        while self._part < len(parts):
            part, is_last = parts[self._part], self._part == len(parts) - 1 and ended is None
            match part["type"]:
                case "text":
                    deltas = part["text"]  # one, once the text has ended
                    text = deltas[0][self._chars :] if len(deltas) == 1 else "".join(deltas[self._deltas :])
                    yield from self._say(text, continues=self._chars > 0 or bool(part.get("continues")))
                    self._deltas, self._chars = len(deltas), self._chars + len(text)
                    if is_last:
                        return
                case "tool":
                    if "ok" not in part and ended is None:
                        return
                    yield Piece(tool=part)
                    if self._has_steps:
                        yield Piece(f"> {call_text(part)}", starts=True)
                    yield from self._say(_own_message(part) or "", continues=False)
                case "approval" if "answer" not in part and ended is None:
                    yield Piece(approval=part)
                    return
            self._part, self._deltas, self._chars = self._part + 1, 0, 0
        if ended is not None and not self.is_complete:
            self.is_complete = True
            yield from self._end(ended)

    def _say(self, text: str, *, continues: bool) -> Iterator[Piece]:
        if not text or self._form is not None:
            return
        if starts := not (continues and self._paragraphs):
            self._paragraphs.append("")
        self._paragraphs[-1] += text
        yield Piece(text, starts)

    def _end(self, ended: TurnEnded) -> Iterator[Piece]:
        """What the reply of the turn has and its texts have not, such as a note below the answer."""
        reply, last = ended.text, self._paragraphs[-1].strip() if self._paragraphs else ""
        if ended.outcome in (TurnOutcome.FAILED, TurnOutcome.REFUSED):
            return
        if self._form is not None:
            with suppress(ValueError):  # the request fails then
                yield Piece(json.dumps(self._form.parse(reply), ensure_ascii=False), starts=True)
        elif not reply or "\n\n".join(text.strip() for text in self._paragraphs).endswith(reply):
            return
        elif last and ended.outcome is not TurnOutcome.STOPPED and reply.startswith(last):
            yield Piece(reply[len(last) :], starts=False)
        elif not (last and ended.outcome is TurnOutcome.STOPPED):
            yield Piece(reply, starts=True)


def part_count(view: TurnView) -> int:
    return sum(part["type"] in _SHOWN for part in view.parts)


def call_text(tool: dict[str, Any]) -> str:
    """A tool call in one line: the same while it runs, later and after a restart."""
    first = next((str(value) for value in tool["arguments"].values()), "")
    return f'{tool["name"]} "{" ".join(first[:80].split())}"'


def _own_message(part: dict[str, Any]) -> str | None:
    """The text that the `message` tool sent to the client itself; None if it sent nothing there."""
    if part["type"] != "tool" or part["name"] != "message" or not part.get("ok"):
        return None
    arguments = part["arguments"]
    return None if arguments.get("chat_id") else str(arguments.get("content", ""))


def sent_files(view: TurnView) -> list[str]:
    """The paths of the files that the agent sent with its answer."""
    messages = [part["arguments"] for part in view.parts if _own_message(part) is not None]
    return [path for arguments in messages for path in arguments.get("media") or ()]


def check_outcome(view: TurnView, schema: dict[str, Any] | None) -> None:
    """Raise HttpError if a turn ended without an answer, or with one that has not the form that was asked for."""
    ended = view.ended
    if ended is None:
        return
    if ended.later:
        text = "nanobot was stopped. The turn goes on when it has started again: send the request again."
        raise HttpError(503, text, code="starting", headers={"Retry-After": "2", "x-should-retry": "true"})
    if ended.outcome in (TurnOutcome.FAILED, TurnOutcome.REFUSED):
        status, code, param = _FAILURES.get(ended.error or "", (502, "provider_error", None))
        raise HttpError(status, ended.text, code=code, param=param, headers=NO_RETRY)
    form = answer_form(schema)
    if form is not None and ended.outcome is TurnOutcome.ANSWERED and form.problem(ended.text):
        text = f"The model's answer does not fit the schema: {ended.text[:1000]}"
        raise HttpError(422, text, code="invalid_response_format", param="response_format", headers=NO_RETRY)


def openai_usage(usage: dict[str, int], *, sent: str = "prompt", received: str = "completion") -> dict[str, Any]:
    """Tokens in the words of chat completions; those of responses are `input` and `output`."""
    prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return {
        f"{sent}_tokens": prompt,
        f"{sent}_tokens_details": {"cached_tokens": usage.get("cached_tokens", 0)},
        f"{received}_tokens": completion,
        f"{received}_tokens_details": {"reasoning_tokens": usage.get("reasoning_tokens", 0)},
        "total_tokens": prompt + completion,
    }


def outcome_of(view: TurnView, workspace: Path) -> dict[str, Any]:
    """What OpenAI's objects have no field for, once the turn has ended."""
    files, turn_id, ended = [], view.started.turn_id, view.ended
    for index, path in enumerate(workspace / Path(name).expanduser() for name in sent_files(view)):
        with suppress(OSError):
            mime = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            url = f"/v1/files/{turn_id}-{index}/content"
            files.append({"name": path.name, "mime": mime, "size": path.stat().st_size, "url": url})
    return {
        "turn_id": turn_id,
        "session": view.session,
        "outcome": ended.outcome if ended is not None else None,
        "cost_usd": ended.cost_usd if ended is not None else None,
        "steps": sum(part["type"] == "tool" for part in view.parts),
        "files": files,
    }
