"""How a turn ended, in the words of OpenAI's API."""

import asyncio
import mimetypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.requests import Request

from nanobot.agent.events import TurnOutcome
from nanobot.agent.feed import TurnView
from nanobot.api.answers import sent_files
from nanobot.api.errors import NO_RETRY
from nanobot.api.options import answer_form
from nanobot.api.turns import ApiTurns, Following
from nanobot.net import sse
from nanobot.security.http_access import HttpError

_FAILURES = {
    "BudgetExceededError": (429, "spending_limit", None),
    "RequestTooLongError": (400, "context_length_exceeded", "messages"),
    "HookDenied": (403, "denied", None),
    "StorageError": (503, "storage_error", None),
}
"""By the error of a turn: status, code and param."""
DONE = sse.event("[DONE]")


async def wait_for(
    request: Request,
    turns: ApiTurns,
    following: Following,
    is_enough: Callable[[], bool | None],
    timeout_s: float,
) -> None:
    """Wait for the end of a turn, or until `is_enough`, which is called at each change and every PING_S. Raises
    HttpError if it takes too long: the turn goes on, and the client's automatic retry gets its answer.
    """

    async def wait() -> None:
        async for _ in turns.changes(following.view):
            if is_enough():
                return

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    waiting, leaving = asyncio.ensure_future(wait()), asyncio.ensure_future(disconnected())
    try:
        done, _ = await asyncio.wait((waiting, leaving), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (waiting, leaving):
            task.cancel()
        await asyncio.gather(waiting, leaving, return_exceptions=True)
    if waiting in done:
        return
    if leaving in done:
        raise HttpError(499, "The client has left.")
    turns.detach(following.request)
    raise HttpError(
        504,
        f"No answer within {timeout_s:g} s (api.timeout). The turn goes on: send the request again, or stream it.",
        code="timeout",
        headers={"x-should-retry": "true", "Location": f"/v1/responses/resp_{following.request.id}"},
    )


def check_outcome(following: Following) -> None:
    """Raise HttpError if a turn ended without an answer, or with one that has not the form that was asked for."""
    ended, schema = following.view.ended, following.request.echo.get("schema")
    if ended is None:
        return
    if ended.outcome not in (TurnOutcome.FAILED, TurnOutcome.REFUSED) and not ended.later:
        form = answer_form(schema)
        if form is not None and ended.outcome is TurnOutcome.ANSWERED and form.problem(ended.text):
            text = f"The model's answer does not fit the schema: {ended.text[:1000]}"
            raise HttpError(422, text, code="invalid_response_format", param="response_format", headers=NO_RETRY)
        return
    if ended.later:
        text = "nanobot was stopped. The turn goes on when it has started again: send the request again."
        raise HttpError(503, text, code="starting", headers={"Retry-After": "2", "x-should-retry": "true"})
    status, code, param = _FAILURES.get(ended.error or "", (502, "provider_error", None))
    raise HttpError(status, ended.text, code=code, param=param, headers=NO_RETRY)


def finish_reason(view: TurnView) -> str:
    """Why the answer ended: `stop`, or `length` if a limit cut it off."""
    return "length" if view.ended is not None and view.ended.outcome is TurnOutcome.PARTIAL else "stop"


def usage_of(view: TurnView) -> dict[str, Any]:
    """The tokens of a turn."""
    return openai_usage(view.ended.usage if view.ended is not None else {})


def openai_usage(usage: dict[str, int]) -> dict[str, Any]:
    """Tokens in the words of chat completions."""
    prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usage.get("cached_tokens", 0)},
        "completion_tokens_details": {"reasoning_tokens": usage.get("reasoning_tokens", 0)},
    }


def outcome_of(following: Following, workspace: Path) -> dict[str, Any]:
    """What OpenAI's objects have no field for, once the turn has ended."""
    record, view, ended = following.request, following.view, following.view.ended
    return {
        "turn_id": record.turn_id,
        "session": record.session,
        "outcome": ended.outcome if ended is not None else None,
        "cost_usd": ended.cost_usd if ended is not None else None,
        "steps": sum(part["type"] == "tool" for part in view.parts),
        "files": _files_of(view, workspace),
    }


def _files_of(view: TurnView, workspace: Path) -> list[dict[str, Any]]:
    """The files that the agent sent, with the addresses to fetch them from."""
    files, turn_id = [], view.started.turn_id
    for index, path in enumerate(workspace / Path(name).expanduser() for name in sent_files(view)):
        with suppress(OSError):
            mime = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            url = f"/v1/files/{turn_id}-{index}/content"
            files.append({"name": path.name, "mime": mime, "size": path.stat().st_size, "url": url})
    return files
