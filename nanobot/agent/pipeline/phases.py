"""One turn, phase by phase: RESTORE, COMMAND, BUILD, RUN, SAVE, RESPOND.

A phase does its part and names the next. The wall around them turns whatever goes wrong into an outcome: a turn ends
with a result, always, and its session works on the next message.

A turn that was cut off, by a crash or by nanobot's own end, leaves a checkpoint. It is taken up by a turn that resumes
it, or by the next message of its session, which then joins it: calls get their results, and what was said goes on.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from nanobot.agent.context import with_attachments
from nanobot.agent.handover import FORGOTTEN, handover_of, told_by_others, with_left_out
from nanobot.agent.pipeline.hooked import denied, end_seen, let_in
from nanobot.agent.pipeline.left_over import (
    MOST_TRIES,
    TurnKeepsDyingError,
    answer_of,
    is_answer,
    missing_messages,
    words_of,
)
from nanobot.agent.pipeline.watch import Watchdog, let_run
from nanobot.agent.pipeline.work import Built, Ending, Goals, Parts, Restored, Turn
from nanobot.agent.run.cut import Cut, open_calls
from nanobot.agent.run.requests import Remembered
from nanobot.agent.run.runner import run
from nanobot.agent.run.spec import RunSpec, never_enough
from nanobot.agent.session_window import keep_window, open_window
from nanobot.agent.slash_commands import parse_command
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.turn import Notice, TurnEnded, TurnOutcome, TurnPhase, TurnResult
from nanobot.bus.events import InboundMessage
from nanobot.errors import BudgetExceededError, NanobotError, ProviderError, RequestTooLongError
from nanobot.messages.types import INTERRUPTED, ChatMessage, Origin, Provenance, least_trusted, text_of
from nanobot.providers.base import CallContext, calling_for
from nanobot.security.vault import cleaned, masked
from nanobot.session.checkpoint import Checkpoint
from nanobot.utils.aio import finish
from nanobot.utils.clock import timestamp

log = logging.getLogger(__name__)

_SESSIONS_REMEMBERED = 64
_ROWS_REMEMBERED = 2_000
_PACED = (TurnPhase.RESTORE, TurnPhase.BUILD, TurnPhase.RUN, TurnPhase.SAVE)
"""The phases that take long enough for many turns at once to be let into them by and by."""

_NO_ANSWER = {
    TurnOutcome.FAILED: "(No answer: the turn failed.)",
    TurnOutcome.STOPPED: "(No answer: the turn was stopped.)",
    TurnOutcome.REFUSED: "(No answer: the message was refused.)",
}
_NOT_GIVEN = "nanobot was interrupted before it could give you this answer:\n{answer}"
_GOES_ON_AFRESH = """\
This conversation became {why}, so it goes on in a fresh session. The old one is kept: nanobot sessions show {name}"""
GOES_ON_LATER = "nanobot is stopping; this goes on at the next start."
COME_BACK = "nanobot is stopping; send the message again later."


class Pipeline:
    """The table of phases."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._remembered: dict[str, Remembered] = {}
        self._phases: dict[TurnPhase, Callable[[Turn], Awaitable[TurnPhase]]] = {
            TurnPhase.RESTORE: self._restore,
            TurnPhase.COMMAND: self._command,
            TurnPhase.BUILD: self._build,
            TurnPhase.RUN: self._run,
            TurnPhase.SAVE: self._save,
            TurnPhase.RESPOND: self._respond,
        }

    async def run(self, turn: Turn) -> TurnResult:
        """Run the turn to its end.

        Never raises for a failure of a model, a tool or the disk. Cancelled, it keeps what was said and ends as
        STOPPED; where `turn.ending` does not say why, the cancel is raised then.
        """
        watchdog = Watchdog(turn, self._parts.patience)
        try:
            await self._to_its_end(turn, watchdog)
        except asyncio.CancelledError:
            if turn.ending is None and watchdog.hung is None:
                raise
            _take_back_the_cancel()  # a stop came while it ended already: it has ended once, with a result
        finally:
            watchdog.close()
            turn.trace.close()
        await self._tell_hooks(turn)
        return turn.result

    async def _tell_hooks(self, turn: Turn) -> None:
        try:
            await end_seen(turn)
        except asyncio.CancelledError:
            if turn.ending is None:
                raise
            _take_back_the_cancel()  # it has ended once, with a result

    async def _to_its_end(self, turn: Turn, watchdog: Watchdog) -> None:
        """Through all phases, or out of them by the way that fits. A cancel is raised when the turn has ended."""
        try:
            await self._through(turn, TurnPhase.RESTORE)
        except asyncio.CancelledError:
            if watchdog.hung is not None:
                await self._failed(turn, watchdog.hung, str(watchdog.hung))
            else:
                await self._cancelled(turn)
            raise
        except (RequestTooLongError, BudgetExceededError) as error:
            await self._end(turn, TurnOutcome.REFUSED, str(error), type(error).__name__)
        except NanobotError as error:
            await self._failed(turn, error, str(error))
        except Exception as error:  # the wall of a turn
            log.exception("turn %s broke", turn.turn_id)
            await self._failed(turn, error, f"Something broke inside nanobot: {type(error).__name__}: {error}.")

    async def _through(self, turn: Turn, phase: TurnPhase) -> None:
        while phase is not TurnPhase.DONE:
            if phase in _PACED:
                await self._parts.pace.step()
            turn.phase = phase
            turn.phase_began = turn.progress.last_sign = time.monotonic()
            following = await self._phases[phase](turn)
            turn.phase_seconds[phase] = time.monotonic() - turn.phase_began
            phase = following

    async def _restore(self, turn: Turn) -> TurnPhase:
        """Hold the session, and see what is left of turns that were cut off."""
        key = turn.message.session_key

        def waiting() -> None:
            turn.emit(Notice(text="Another nanobot is working in this session; waiting for it."))

        session = await turn.resources.enter_async_context(self._parts.sessions.hold(key, waiting))
        checkpoint = Checkpoint(self._parts.turns_folder, key)
        turn.restored = Restored(session, checkpoint, checkpoint.load())
        turn.scope = self._parts.scope_of(turn.message)
        if not turn.resumes:
            return TurnPhase.COMMAND
        if turn.restored.left.turn_id == turn.turn_id:
            turn.checkpoint = checkpoint  # a stop may come before BUILD: what it ends is not taken up again
            return TurnPhase.BUILD
        turn.ends(TurnOutcome.ANSWERED, "")  # somebody took it up already
        return TurnPhase.SAVE

    async def _command(self, turn: Turn) -> TurnPhase:
        """Answer a word to nanobot. What was cut off waits for the next message, unless it is to be forgotten."""
        if turn.message.journal_key in turn.session.metadata.get(FORGOTTEN, ()):
            turn.ends(TurnOutcome.ANSWERED, "")
            return TurnPhase.SAVE
        goals, message = self._parts.goals, turn.message
        if goals is not None and goals.serves(message) and not goals.is_wanted(message):
            turn.ends(TurnOutcome.ANSWERED, "")
            return TurnPhase.SAVE
        commands, command = self._parts.commands, parse_command(turn.message.content)
        if command is None:
            if goals is not None:
                await goals.recall(message.session_key)
            return TurnPhase.BUILD
        assert turn.restored is not None  # noqa: S101 RESTORE made it
        if commands.canonical(command) == "new":
            turn.restored.checkpoint.discard()
        text = await commands.answer(command, turn.session, turn.message, attended=turn.attended)
        turn.ends(TurnOutcome.ANSWERED, text)
        return TurnPhase.SAVE

    async def _build(self, turn: Turn) -> TurnPhase:
        """Keep the message before any model is asked, with the context that is sent with it."""
        assert turn.restored is not None  # noqa: S101 RESTORE made it
        turn.for_model = True
        if not turn.resumes and (why_not := await denied(turn, turn.message)) is not None:
            turn.ends(TurnOutcome.REFUSED, why_not, "HookDenied")
            return TurnPhase.SAVE
        turn.trace.heard(turn.message.content)
        session, left = turn.restored.session, turn.restored.left
        turn.checkpoint = turn.restored.checkpoint
        if not left and (why := self._parts.roll_over.why(session, self._parts.clock.now())):
            name = await self._parts.roll_over.begin_afresh(self._parts.sessions, session, why)
            if name is not None:
                turn.emit(Notice(text=_GOES_ON_AFRESH.format(why=why, name=name)))
        history = session.get_history()
        if left.started is None and (calls := open_calls(history)):
            # nobody wrote down which of them began: each may have, and so it stays if this turn is cut off too
            await turn.checkpoint.calls_start([call.id for call in calls], durable=True)
        turn.checkpoint.accept(turn.turn_id, turn.message.to_json())
        turn.checkpoint.session_has(session.message_count)
        answer = answer_of(history, left.turn_id) if left else None
        if answer is not None and turn.resumes:  # the crash came between the answer and the end
            turn.ends(TurnOutcome.FAILED if answer.get("error") else TurnOutcome.ANSWERED, words_of(history))
            return TurnPhase.SAVE
        if answer is not None:
            turn.emit(Notice(text=_NOT_GIVEN.format(answer=words_of(history))))
        if left.text.strip() and left.after == session.message_count:
            said: ChatMessage = {
                "role": "assistant",
                "content": left.text,
                "error": INTERRUPTED,
                "turn_id": left.turn_id,
            }
            await self._record(turn, said)
            history = session.get_history()
        missing = missing_messages(history, left) if left else []
        turn.joining = [self._row_of(turn, message, history, turn_id) for turn_id, message in missing]
        if not turn.resumes:
            turn.joining.append(self._row_of(turn, turn.message, history))
        elif left.tries >= MOST_TRIES:
            raise TurnKeepsDyingError(left.tries)
        if turn.joins_early and not turn.resumes:
            await self._take_along(turn)
        if not open_calls(history):
            await self._keep_joining(turn)
        rows, window = open_window(session)
        model = await self._parts.models.get(turn.model or session.metadata.get("model"))
        model.provider.prepare()
        await self._parts.tools.refresh()
        for text in self._parts.news_of(turn.session.key):
            turn.emit(Notice(text=text))
        turn.built = Built(model, rows, window)
        return TurnPhase.RUN

    async def _run(self, turn: Turn) -> TurnPhase:
        parts, message = self._parts, turn.message
        restored, built, checkpoint = turn.restored, turn.built, turn.checkpoint
        assert restored is not None and built is not None and checkpoint is not None  # noqa: S101 made by now

        async def record(row: ChatMessage) -> None:
            if turn.abandoned:
                raise asyncio.CancelledError("this run was left behind")
            await self._record(turn, row)

        first = turn.session.message_count - len(built.history)

        async def joining() -> list[ChatMessage]:
            if turn.abandoned:
                raise asyncio.CancelledError("this run was left behind")
            await self._take_along(turn)
            return await finish(self._keep_joining(turn))

        spec = RunSpec(
            model=built.model,
            system=masked(
                parts.prompt.build_system_prompt(
                    self._earlier(turn, first + built.window.start),
                    scope=turn.scope,
                    began=turn.session.created_at.date(),
                )
            ),
            history=built.history,
            tools=parts.tools,
            context=ToolContext(
                session_key=message.session_key,
                address=message.address,
                turn_id=turn.turn_id,
                workspace=parts.workspace,
                clock=parts.clock,
                asker=message.provenance,
                origin=message.origin,
                sender_id=message.sender_id,
                attended=turn.attended,
                quiet=message.quiet,
                answers=message.journal_key,
                scope=turn.scope,
            ),
            emit=turn.emit,
            record=record,
            partial=checkpoint.partial,
            calls_start=checkpoint.calls_start,
            joining=joining,
            cut=Cut(restored.left.started) if turn.resumes or open_calls(built.history) else None,
            window=built.window,
            keep_window=lambda window: keep_window(turn.session, first, window),
            remembered=self._remembered_of(turn.session.key),
            hooks=parts.hooks,
            hook_wall=turn.hook_wall,
            told=[
                *told_by_others(turn.session.metadata, turn.session.key, turn.scope),
                *(parts.goals.told(message) if parts.goals is not None else ()),
            ],
            enough=self._enough_of(turn),
        )
        turn.trace.runs(spec)
        with calling_for(_call_context(turn, parts.goals)):
            result = await let_run(turn, run(spec), parts.patience.letting_go)
        turn.result = TurnResult(
            result.outcome,
            result.text,
            result.error,
            turn.turn_id,
            dict(result.usage),
            result.cost_usd,
            joined=turn.joined,
        )
        return TurnPhase.SAVE

    def _earlier(self, turn: Turn, shown_from: int) -> str:
        """What the session remembers of messages that are not shown: the model's note, or that there is none."""
        session, note = turn.session, handover_of(turn.session.metadata)
        if not self._parts.failures_of(session.key):
            return note
        return with_left_out(note, shown_from - session.last_consolidated)

    def _enough_of(self, turn: Turn) -> Callable[[], str]:
        """Says before each model call why it is enough, for a turn that works for a goal."""
        goals, message = self._parts.goals, turn.message
        if goals is None or not goals.serves(message):
            return never_enough
        return lambda: goals.why_enough(message)

    def _remembered_of(self, session_key: str) -> Remembered:
        """What was found out about the rows of the sessions that ran last."""
        found = self._remembered.pop(session_key, None) or Remembered()
        rows = sum(len(one.legal) for one in self._remembered.values())
        for key in list(self._remembered):
            if len(self._remembered) < _SESSIONS_REMEMBERED and rows <= _ROWS_REMEMBERED:
                break
            rows -= len(self._remembered.pop(key).legal)
        self._remembered[session_key] = found
        return found

    async def _save(self, turn: Turn) -> TurnPhase:
        """Everything is on disk already; let go of the session."""
        if turn.checkpoint is not None:
            turn.checkpoint.discard()
        await turn.resources.aclose()
        if turn.restored is not None:
            self._parts.saved(turn.session, turn.scope)
        return TurnPhase.RESPOND

    async def _respond(self, turn: Turn) -> TurnPhase:
        result = turn.result
        turn.emit(
            TurnEnded(
                outcome=result.outcome,
                text=result.text,
                error=result.error,
                usage=dict(result.usage),
                cost_usd=result.cost_usd,
                model=turn.built.model.name if turn.built else None,
                phase_seconds=dict(turn.phase_seconds),
                later=result.later or None,
                joined=turn.joined or None,
            )
        )
        return TurnPhase.DONE

    async def _cancelled(self, turn: Turn) -> None:
        if turn.ending is Ending.INTERRUPT:
            is_judged = turn.checkpoint is not None or not turn.for_model  # before, hooks are asked and nothing is kept
            is_begun = TurnPhase.COMMAND in turn.phase_seconds and is_judged
            kept = turn.resumes or turn.message.journal_key is not None or is_begun
            turn.ends(TurnOutcome.STOPPED, GOES_ON_LATER if kept else COME_BACK, later=kept)
            await finish(self._leave_for_later(turn))
        else:
            await self._end(turn, TurnOutcome.STOPPED, self._said(turn))

    async def _leave_for_later(self, turn: Turn) -> None:
        """nanobot ends: let go of the session, and leave the checkpoint to the next start."""
        if turn.checkpoint is not None:
            turn.checkpoint.close()
        await turn.resources.aclose()
        await self._respond(turn)

    async def _failed(self, turn: Turn, error: Exception, text: str) -> None:
        text, vitals = cleaned(text), self._parts.vitals
        vitals.last_error = text
        if isinstance(error, ProviderError):
            vitals.model_error = text
        await self._end(turn, TurnOutcome.FAILED, text, type(error).__name__)

    async def _end(self, turn: Turn, outcome: TurnOutcome, text: str, error: str | None = None) -> None:
        """The way out for turns that did not come to RESPOND by themselves."""
        if turn.message.plainly and outcome in (TurnOutcome.FAILED, TurnOutcome.REFUSED):
            text = f"{turn.message.plainly}\n\n({text})"
        turn.ends(outcome, text, error)
        await finish(self._close(turn, outcome))

    async def _close(self, turn: Turn, outcome: TurnOutcome) -> None:
        """Where the model gave no answer, keep one of ours, so that roles alternate and the prefix stays."""
        try:
            if turn.left_unsaid.strip():
                await self._record(turn, {"role": "assistant", "content": turn.left_unsaid, "error": INTERRUPTED})
            await self._keep_joining(turn)
            history = turn.session.get_history() if turn.restored is not None else []
            last = history[-1] if history else None
            if last is not None and last.get("turn_id") == turn.turn_id and not is_answer(last):
                row: ChatMessage = {
                    "role": "assistant",
                    "content": _NO_ANSWER[outcome],
                    "error": turn.result.error or outcome,
                }
                if turn.result.text:
                    row["told"] = turn.result.text
                await self._record(turn, row)
        except NanobotError as error:
            log.warning("turn %s: its end could not be kept: %s", turn.turn_id, error)
        await self._through(turn, TurnPhase.SAVE)

    async def _take_along(self, turn: Turn) -> None:
        """Let messages that wait join the turn, as many as may."""
        more = turn.waiting(turn.most_joining - turn.joined)
        turn.joined += len(more)
        if more:
            history = turn.session.get_history()
            await let_in(turn, more, lambda message: turn.joining.append(self._row_of(turn, message, history)))

    async def _keep_joining(self, turn: Turn) -> list[ChatMessage]:
        """The rows that waited for a boundary are part of the session now."""
        rows, turn.joining = turn.joining, []
        for row in rows:
            await self._record(turn, row)
        return rows

    async def _record(self, turn: Turn, row: ChatMessage) -> None:
        if row["role"] == "assistant":
            _mask(row)
        if row.get("tool_calls") and turn.checkpoint is not None:
            turn.checkpoint.step_begins()
        row.setdefault("timestamp", timestamp(self._parts.clock))
        row.setdefault("turn_id", turn.turn_id)
        row.setdefault("provenance", Provenance.SYSTEM)
        await self._parts.sessions.append(turn.session, row)
        if turn.checkpoint is not None:
            turn.checkpoint.session_has(turn.session.message_count)

    def _row_of(
        self, turn: Turn, message: InboundMessage, history: Sequence[ChatMessage], turn_id: str = ""
    ) -> ChatMessage:
        """A person's message as the session keeps it, with the context that is sent beside it."""
        parts = self._parts
        told = parts.goals.told(message) if parts.goals is not None else ()  # before the note: that may be an answer
        goal = parts.goals.note_for(message) if parts.goals is not None else ""
        context = parts.prompt.runtime_context(message.channel, message.chat_id, history, scope=turn.scope, goal=goal)
        row: ChatMessage = {
            "role": "user",
            "content": with_attachments(message.content, message.media),
            "runtime_context": masked(context),
            "sender_id": message.sender_id,
            "origin": message.origin,
            "provenance": message.provenance,
            "turn_id": turn_id or turn.turn_id,
        }
        if told:
            row["context_provenance"] = least_trusted(one["provenance"] for one in told)
        if message.media:
            row["media"] = list(message.media)
        if message.in_group:
            row["in_group"] = True
        if turn.scope.chat:
            row["scope"] = turn.scope.chat
        if message.journal_key is not None:
            row["inbound"] = message.journal_key
        return row

    def _said(self, turn: Turn) -> str:
        """What the model had said when the turn was stopped."""
        if turn.restored is None:
            return ""
        mine = [row for row in turn.session.get_history() if row.get("turn_id") == turn.turn_id]
        said = [text_of(row["content"]) for row in mine if row["role"] == "assistant"]
        return "\n\n".join(text for text in said if text)


def _mask(row: ChatMessage) -> None:
    """Whatever a model made of what it saw, no secret of ours is kept."""
    if isinstance(row["content"], str):
        row["content"] = masked(row["content"])
    if thought := row.get("reasoning_content"):
        row["reasoning_content"] = masked(thought)
    for call in row.get("tool_calls", ()):
        call["function"]["arguments"] = masked(call["function"]["arguments"])


def _take_back_the_cancel() -> None:
    """The cancel has said what it had to say: the turn ends with a result."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


_CAUSES = (Origin.CRON, Origin.HEARTBEAT, Origin.SUBAGENT, Origin.GOAL)
"""Origins that the ledger tells apart; the rest are turns that a person asked for."""


def _call_context(turn: Turn, goals: Goals | None) -> CallContext:
    message, emit = turn.message, turn.emit  # this one: of a run that is left behind nothing is heard
    return CallContext(
        message.origin if message.origin in _CAUSES else "turn",
        message.session_key,
        turn.turn_id,
        goal=goals is not None and goals.serves(message),
        notify=lambda text: emit(Notice(text=text)),
    )
