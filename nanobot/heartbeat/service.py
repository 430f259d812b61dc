"""The heartbeat service: the open tasks of HEARTBEAT.md, when a model is asked about them, and what its decision does.

While HEARTBEAT.md has an open task, a model is asked at every interval; without one a check costs a few system calls.
The model may name a later time: then it is asked earlier only if the file, a file that it names, or the day changes.
Decisions and recent runs are kept across restarts.
"""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from nanobot.errors import NanobotError
from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import CallContext, LLMProvider, LLMResponse, call_context_scope
from nanobot.utils import codec
from nanobot.utils.clock import Clock, SystemClock, zone_name
from nanobot.utils.files import open_nonblocking, write_in_place
from nanobot.utils.text import clip, clip_line

log = logging.getLogger(__name__)

SESSION = "heartbeat"
DEFAULT_INTERVAL_S = 30 * 60
_MAX_BYTES = 256 * 1024
_FILE_NAME = re.compile(r"[\w./~-]+\.\w{1,8}\b")
_MAX_WATCHED = 50
_MAX_RUNS = 5
_MAX_RUN_CHARS = 200
"""Limit of the description of a run in later prompts."""
_MAX_TASK_CHARS = 5_000
"""Limit of the task list, so that the prompt stays below 2,000 tokens."""
_MAX_MINUTES = 7 * 24 * 60

OK = "HEARTBEAT_OK"
"""What a model answers if there is nothing to do or to report."""

_SYSTEM = """\
You look after the standing tasks of a personal AI agent. You are asked at a regular interval, and remember nothing of \
the last time but the list of what was done. Decide whether one of the tasks has to be worked on right now, and call \
`heartbeat` once; write nothing else.

- `skip`: nothing is due, or what is due was done already. `run`: something is due; put into `tasks` what is to be \
done now, complete in itself.
- `again_in_minutes`: only if nothing can be due before then, and that is later than the next interval. Leave it out \
where you are not sure. You are asked earlier if the file or the day changes."""

HEARTBEAT: ToolSchema = {
    "type": "function",
    "function": {
        "name": "heartbeat",
        "description": "Say whether a standing task has to be worked on now.",
        "parameters": {
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["skip", "run"]},
                "tasks": {"type": "string", "description": "What is to be done now; only with run."},
                "again_in_minutes": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "Minutes until the next question, if it may be later than usual.",
                },
            },
            "required": ["action"],
        },
    },
}

_PAUSED = """\
The heartbeat is paused since {time}: {error}
The open tasks of HEARTBEAT.md are not looked at meanwhile. It tries again tomorrow, when HEARTBEAT.md changes, or at \
the next start of the gateway."""
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_HEADING = re.compile(r"\s{0,3}(?P<marks>#{1,6})\s+(?P<title>.*?)\s*#*\s*\Z")
_RULE = re.compile(r"\s{0,3}([-*_])(?:\s*\1){2,}\s*\Z")
_ITEM = re.compile(r"(?P<indent>\s*)(?:[-*+]|\d{1,9}[.)])(?:\s+|\Z)(?:\[(?P<mark>[ xX]?)\](?:\s+|\Z))?")


@dataclass(frozen=True, slots=True)
class _State:
    """The last decision and the recent runs, as stored in the state file."""

    fingerprint: str = ""
    again_at: float | None = None
    runs: tuple[tuple[str, str], ...] = ()
    """(time, tasks), oldest first."""


class HeartbeatService:
    """Checks HEARTBEAT.md at intervals."""

    def __init__(
        self,
        workspace: Path,
        provider: LLMProvider,
        model: str | None = None,
        on_execute: Callable[[str], Awaitable[str]] | None = None,
        on_notify: Callable[[str], Awaitable[None]] | None = None,
        interval_s: float = DEFAULT_INTERVAL_S,
        enabled: bool = True,
        *,
        clock: Clock | None = None,
        state_file: Path | None = None,
        opener: Callable[[str, int], int] = open_nonblocking,
    ) -> None:
        """`on_execute` runs tasks and returns the text of the result; `on_notify` sends the owner that, or why the
        heartbeat is paused. `state_file` stores decisions; without it the model is asked again after a restart.
        `opener` is passed to `open` and decides where HEARTBEAT.md may lead if it is a link.
        """
        self.heartbeat_file = workspace / "HEARTBEAT.md"
        self.enabled = enabled
        self.interval_s = interval_s
        self.paused = ""
        """Why no model is asked although there is a task; empty if not paused."""
        self._workspace = workspace
        self._opener = opener
        self._provider = provider
        self._model = model
        self._on_execute = on_execute
        self._on_notify = on_notify
        self._clock = clock or SystemClock()
        self._state_file = state_file
        self._state = _State()
        if state_file is not None:
            with suppress(OSError, ValueError):
                self._state = codec.from_json(_State, state_file.read_bytes())
        self._refused_fingerprint = ""
        """The fingerprint when a retry became useless: no model is asked again until it changes."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the background task and return. Does nothing if it runs already or is not enabled."""
        if self.enabled and self._task is None:
            self._task = asyncio.create_task(self.run(), name="heartbeat")

    def stop(self) -> None:
        """Stop, and cancel a run in progress."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def run(self) -> None:
        """Check at intervals until cancelled. Never raises for a failure of a model or the disk."""
        while True:
            await asyncio.sleep(self.interval_s)
            try:
                await self.check()
            except NanobotError as error:
                log.warning("The heartbeat failed: %s", error)
            except Exception:  # a failed check must not stop later ones
                log.exception("the heartbeat failed")

    async def trigger_now(self) -> str | None:
        """Ask the model now, whatever it decided before, and run what is due. Return None if there was nothing."""
        self._state, self._refused_fingerprint = replace(self._state, again_at=None), ""
        return await self.check()

    async def check(self) -> str | None:
        """Check once. Return the reported result, or None if there was none. Raises the errors of the model."""
        now, state = self._clock.now(), self._state
        tasks, fingerprint = await asyncio.to_thread(self._read, now)
        if not tasks:
            self.paused = ""
            return None
        is_early = fingerprint == state.fingerprint and now.timestamp() < (state.again_at or 0.0)
        if is_early or fingerprint == self._refused_fingerprint:
            return None
        try:
            with call_context_scope(CallContext("heartbeat", SESSION)):
                prompt = _prompt(tasks, now, self.interval_s, state.runs)
                due, again_in_s = _decision(
                    await self._provider.chat(prompt, [HEARTBEAT], self._model, 512, 0.0), tasks
                )
        except NanobotError as error:
            if not error.retryable:
                is_first = not self.paused
                self._refused_fingerprint, self.paused = fingerprint, f"the model refuses: {error}"
                if is_first and self._on_notify is not None:
                    await self._on_notify(_PAUSED.format(time=f"{now:%Y-%m-%d %H:%M}", error=error))
            raise
        self.paused = self._refused_fingerprint = ""
        result, runs = None, state.runs
        if due and self._on_execute is not None:
            text = await self._on_execute(due)
            if not _is_ok(text):
                result = text
                if self._on_notify is not None:
                    await self._on_notify(text)
            _, fingerprint = await asyncio.to_thread(self._read, now)  # a task that the run ticked off is no news
            done = clip_line(" ".join(due.split()), _MAX_RUN_CHARS)
            runs = (*runs, (f"{now:%Y-%m-%d %H:%M}", done))[-_MAX_RUNS:]
        again_at = None if again_in_s is None else now.timestamp() + again_in_s
        self._state = _State(fingerprint, again_at, runs)
        if self._state_file is not None:
            try:
                await asyncio.to_thread(write_in_place, self._state_file, codec.to_json(self._state))
            except OSError as error:
                log.warning("cannot store the state of the heartbeat: %s", error)
        return result

    def _read(self, now: datetime) -> tuple[list[str], str]:
        """The open tasks, and a hash of them, the day, and the size and time of workspace files that the text names."""
        text = ""
        with (
            suppress(OSError),
            open(self.heartbeat_file, encoding="utf-8", errors="replace", opener=self._opener) as file,
        ):
            text = file.read(_MAX_BYTES)
        tasks = parse_tasks(text)
        watched = [f"{now:%Y-%m-%d}", *tasks]
        for name in [*dict.fromkeys(_FILE_NAME.findall(text))][:_MAX_WATCHED] if tasks else ():
            with suppress(OSError, ValueError, RuntimeError):
                stat = (self._workspace / Path(name).expanduser()).stat()
                watched.append(f"{name} {stat.st_size} {stat.st_mtime_ns}")
        return tasks, sha256("\0".join(watched).encode("utf-8", "surrogatepass")).hexdigest()


def _prompt(
    tasks: Sequence[str], now: datetime, interval_s: float, runs: Sequence[tuple[str, str]]
) -> list[ChatMessage]:
    task_list = clip("\n".join(f"- {task}" for task in tasks), _MAX_TASK_CHARS)
    done = "\n".join(f"- {when}: {what}" for when, what in runs) or "(nothing yet)"
    text = (
        f"It is {now:%Y-%m-%d %H:%M (%A)} ({zone_name(now)}). You are asked every {interval_s / 60:g} minutes.\n\n"
        f"The open tasks of HEARTBEAT.md:\n\n{task_list}\n\nDone lately:\n\n{done}"
    )
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}]


def _decision(response: LLMResponse, tasks: Sequence[str]) -> tuple[str, float | None]:
    """The tasks to do now, and in how many seconds the model wants to be asked again.

    Anything but a clear `run` is a skip, so that a malformed response starts nothing.
    """
    arguments = next((call.arguments for call in response.tool_calls if call.name == "heartbeat"), {})
    try:
        again_in_s = 60 * min(max(float(arguments["again_in_minutes"]), 1.0), _MAX_MINUTES)
    except (KeyError, TypeError, ValueError):
        again_in_s = None
    if str(arguments.get("action")).strip().lower() != "run":
        return "", again_in_s
    due = arguments.get("tasks")
    text = due if isinstance(due, str) else json.dumps(due, ensure_ascii=False) if due else ""
    return text.strip() or "\n".join(tasks), again_in_s


def _is_ok(text: str) -> bool:
    """Whether the result of a run says that there is nothing to report."""
    bare = text.strip().strip("*`\"'.! \n")
    return not bare or (OK in text and len(text.replace(OK, "").strip()) < 40)


def parse_tasks(markdown: str) -> list[str]:
    """Return the open tasks in order, each with its continuation lines.

    Headings, comments, empty boxes and ticked items (`- [x]`) are no tasks. In a file with sections, neither is a
    paragraph directly under the title, which describes the file.
    """
    lines = _COMMENT.sub("", markdown).splitlines()
    headings = [match for line in lines if (match := _HEADING.match(line))]
    has_sections = any(len(heading["marks"]) > 1 and not _is_completed(heading) for heading in headings)
    tasks: list[list[str]] = []
    block: list[str] | None = None  # the lines of the item or paragraph, whether it is a task or not
    in_item, level, completed_at = False, 0, 0
    for line in lines:
        item = _ITEM.match(line)
        if heading := _HEADING.match(line):
            block, level = None, len(heading["marks"])
            if not completed_at or level <= completed_at:
                completed_at = level if _is_completed(heading) else 0
        elif not line.strip() or _RULE.match(line):
            block = None
        elif item and not (item["indent"] and block is not None and in_item):
            block, in_item = [line[item.end() :].strip()], True
            if not completed_at and item["mark"] not in ("x", "X"):
                tasks.append(block)
        elif block is not None:
            block.append(line.strip())
        else:
            block, in_item = [line.strip()], False
            if not completed_at and not (has_sections and level <= 1):
                tasks.append(block)
    return [text for block in tasks if (text := "\n".join(block).strip())]


def _is_completed(heading: re.Match[str]) -> bool:
    return heading["title"].strip().lower() == "completed"
