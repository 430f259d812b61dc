"""The bot of a running gateway, as the terminal sees it: each request is a line to the local socket of its own."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nanobot.agent.turn import Answer, EventSink, TurnEnded, TurnOutcome, TurnResult, event_from_json
from nanobot.bus.events import InboundMessage
from nanobot.cli.bot import Joining, ModelSeen, Show
from nanobot.errors import NanobotError
from nanobot.gateway.client import GatewayError, Line, dial
from nanobot.gateway.wire import settings_in

_GONE = "The gateway ended in the middle of this. What was said is kept; write again to go on."
_AWAY = (
    "The gateway has ended. This chat waits for it to come back; to go on without one, leave (Ctrl+D) and start "
    "`nanobot agent` again: it goes on with this session."
)
_BACK = "The gateway is back."
_AGAIN_S = 2.0


class GatewayBot:
    """Everything it does happens in the gateway: one writer, the same sessions."""

    def __init__(self, state: Path, about: Mapping[str, Any], *, again_s: float = _AGAIN_S) -> None:
        """`about` is what the gateway told of itself and of the session; see `find_bot`. One that ended is looked for
        every `again_s`.
        """
        self._state = state
        self._again_s = again_s
        self._about = about
        self._running: Line | None = None
        self._waiting: list[dict[str, Any]] = []
        self._says: set[asyncio.Task[None]] = set()

    @property
    def session_key(self) -> str:
        """The session that was asked for."""
        return str(self._about["session"])

    @property
    def name(self) -> str:
        """What it is called."""
        return str(self._about["name"])

    @property
    def workspace(self) -> Path:
        """Its folder."""
        return Path(str(self._about["workspace"]))

    def commands(self) -> Mapping[str, str]:
        """Its slash commands."""
        return dict(self._about["commands"])

    def skills(self) -> Mapping[str, str]:
        """Skills it can use, as it told at the start."""
        return dict(self._about["skills"])

    async def model(self, session_key: str) -> ModelSeen:
        """The model of this session."""
        async with dial(self._state) as line:
            told = await _there(line).ask({"do": "model", "session": session_key})
        return ModelSeen(str(told["name"]), int(told["window"]), str(told["provider"]), str(told["reason"]))

    async def run_turn(
        self,
        message: InboundMessage,
        sink: EventSink | None = None,
        *,
        waiting: Joining | None = None,
        show: Show | None = None,
        attended: bool = False,
    ) -> TurnResult:
        """The turn of a message. Cancelling stops it, and waits until it has ended."""
        request = {"do": "turn", "text": message.content, "session": message.session_key, "media": message.media}
        async with dial(self._state) as line:
            await _there(line).say({**request, "shows": show is not None, "answers": attended})
            return await self._until_it_ends(_there(line), sink, waiting, show)

    async def resume(self, session_key: str, sink: EventSink, *, attended: bool = False) -> None:
        """Take up what was cut off."""
        async with dial(self._state) as line:
            await _there(line).say({"do": "resume", "session": session_key, "answers": attended})
            await self._until_it_ends(_there(line), sink)

    async def stop_turn(self, session_key: str) -> bool:
        """Stop the turn that this bot runs."""
        if self._running is None:
            return False
        await self._running.say({"do": "stop"})
        return True

    def lines_wait(self, messages: Sequence[InboundMessage]) -> None:
        """Tell the turn that runs what it may take along."""
        self._waiting = [{"text": message.content, "media": message.media} for message in messages]
        self._tell({"do": "waiting", "lines": self._waiting})

    def answer(self, question: str, answer: Answer) -> None:
        """Answer what the turn has asked."""
        self._tell({"do": "answer", "question": question, "answer": answer})

    def _tell(self, frame: dict[str, Any]) -> None:
        """Say something about the turn that runs."""
        if self._running is not None:
            saying = asyncio.ensure_future(self._running.say(frame))
            self._says.add(saying)
            saying.add_done_callback(self._says.discard)

    async def shell(self, line: str, session_key: str) -> tuple[list[str], bool]:
        """Run a `!command`, where the gateway runs the agent's."""
        from nanobot.cli.shell_escape import command_of, shown_output  # only who types one waits for it

        command, problem = command_of(line, is_on=bool(self._about["exec"]))
        if problem:
            return [problem], False
        async with dial(self._state) as there:
            ran = await _there(there).ask({"do": "exec", "command": command, "session": session_key})
        return shown_output(str(ran["text"])), not ran["error"]

    async def messages(self, session_key: str) -> AsyncGenerator[str, None]:
        """What comes for this chat, also from a gateway that was begun anew. One that stays away is told of."""
        is_away = False
        while True:
            async with dial(self._state) as line:
                if is_away is not (line is None):
                    is_away = line is None
                    yield _AWAY if is_away else _BACK
                if line is not None:
                    await line.say({"do": "listen", "session": session_key})
                    with suppress(GatewayError):
                        while (frame := await line.hear()) is not None:
                            if frame.get("type") == "message":
                                yield str(frame.get("text", ""))
            await asyncio.sleep(self._again_s)

    @property
    def is_tidying(self) -> bool:
        """The gateway lives on: it is no concern of this process."""
        return False

    async def tidied(self) -> None:
        """Nothing to wait for."""

    async def jobs_wait(self) -> str:
        """They do not: the gateway runs them."""
        return ""

    async def background_ends(self, session_key: str, begins: Callable[[Sequence[str]], None], show: Show) -> None:
        """What works in the gateway."""
        async with dial(self._state) as line:
            if line is None:
                return
            await line.say({"do": "background", "session": session_key})
            while (frame := await line.hear()) is not None and frame.get("type") != "told":
                if frame.get("type") == "working":
                    begins([str(one) for one in frame.get("at_work", ())])
                elif frame.get("type") == "message":
                    show(str(frame.get("text", "")))

    async def _until_it_ends(
        self, line: Line, sink: EventSink | None, waiting: Joining | None = None, show: Show | None = None
    ) -> TurnResult:
        if sink is not None:  # one without is a command beside the turn, and ends at once
            self._running = line
        try:
            return await self._events(line, sink, waiting, show)
        except asyncio.CancelledError:
            await line.say({"do": "stop"})
            with suppress(TimeoutError, NanobotError):
                async with asyncio.timeout(_AGAIN_S):
                    await self._events(line, sink, waiting, show)
            raise
        finally:
            if self._running is line:
                self._running = None

    async def _events(
        self, line: Line, sink: EventSink | None, waiting: Joining | None, show: Show | None
    ) -> TurnResult:
        while (frame := await line.hear()) is not None:
            if frame.get("type") == "nothing":
                return TurnResult(TurnOutcome.ANSWERED, "")
            if frame.get("type") == "joined" and waiting is not None:
                waiting(int(frame["count"]))
                continue
            if frame.get("type") == "message" and show is not None:
                show(str(frame.get("text", "")))
                continue
            event = event_from_json(frame)
            if event is not None and sink is not None:
                sink(event)
            if isinstance(event, TurnEnded):
                return TurnResult(event.outcome, event.text, event.error, event.turn_id)
        raise GatewayError(_GONE)


def _there(line: Line | None) -> Line:
    """The line, where somebody is at its other end."""
    if line is None:
        raise GatewayError(
            "The gateway does not answer any more. Leave and start `nanobot agent` again: it goes on with this "
            "session, with a gateway or without."
        )
    return line


async def find_bot(state: Path, session_key: str | None, *, go_on: bool) -> GatewayBot | None:
    """The bot of the gateway whose state folder this is, for this session; None where no gateway runs.

    None too where our environment sets something that the gateway's does not. Raises GatewayError where it will not.
    """
    async with dial(state) as line:
        if line is None or not settings_in(os.environ).items() <= dict(line.hello.get("settings", {})).items():
            return None
        about = await line.ask({"do": "about", "session": session_key, "continue": go_on})
    return GatewayBot(state, about)
