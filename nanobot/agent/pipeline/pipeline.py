"""The pipeline of one turn: RESTORE, COMMAND, COMPACT, BUILD, RUN, SAVE, RESPOND.

Any failure becomes an outcome, so every turn ends with a result. A turn interrupted by a crash or a shutdown leaves a
checkpoint; a turn that resumes it continues it, or the next message of its session.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from nanobot.agent.commands.table import last_request
from nanobot.agent.context import with_attachments
from nanobot.agent.engine.runner import run
from nanobot.agent.engine.spec import MAX_CONTINUATIONS, Model, RunSpec
from nanobot.agent.engine.transcript import is_answer, outcome_text, pending_calls
from nanobot.agent.events import Notice, TurnEnded, TurnOutcome, TurnPhase, TurnResult
from nanobot.agent.feed import parts_of_turn
from nanobot.agent.hooks import Deny, MessageSeen, TurnSeen
from nanobot.agent.pipeline.turn import RestoredSession, Turn, TurnDeps, TurnEnding, Watchdog, run_with_watchdog
from nanobot.agent.recovery import (
    MAX_ATTEMPTS,
    RepeatedlyInterruptedError,
    find_answer,
    missing_messages,
)
from nanobot.agent.session_summary import FORGOTTEN_KEY, add_omitted_note, session_summary, untrusted_summary
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.window.fit import LastRequest
from nanobot.agent.window.state import Window, open_window, save_window
from nanobot.bus.events import InboundMessage
from nanobot.errors import BudgetExceededError, NanobotError, ProviderError, RequestTooLongError
from nanobot.messages.types import (
    BACKGROUND_ORIGINS,
    INTERRUPTED,
    ChatMessage,
    Origin,
    Provenance,
    least_trusted,
    text_of,
)
from nanobot.providers.base import CallContext, call_context_scope
from nanobot.providers.errors import ModelCallError
from nanobot.security.secrets import redact_all, redact_known
from nanobot.session.checkpoint import ORIGINAL_KEYS, PARTIAL_EVERY_S, Checkpoint, goal_of_original, rows_of_original
from nanobot.session.types import Session
from nanobot.utils.aio import Pace, finish
from nanobot.utils.clock import timestamp
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

_MAX_REMEMBERED_SESSIONS = 64
_MAX_REMEMBERED_ROWS = 2_000
_PACED_PHASES = (TurnPhase.RESTORE, TurnPhase.BUILD, TurnPhase.RUN, TurnPhase.SAVE)
"""Phases expensive enough that many turns at once enter them one by one."""
_LOGGED_CHARS = 500
_SESSION_TOOLS = ("spawn", "goal")
"""Tools that go on working in the session after the turn."""
_COMPACT_S = 60.0
"""Time limit of COMPACT: a person waits for the answer meanwhile."""
_NOTICE_AFTER_S = 10.0
_COMPACTING = "Moving older messages of this conversation into memory before I answer."

_NO_ANSWER = {
    TurnOutcome.FAILED: "(No answer: the turn failed.)",
    TurnOutcome.STOPPED: "(No answer: the turn was stopped.)",
    TurnOutcome.REFUSED: "(No answer: the message was refused.)",
}
_UNDELIVERED_ANSWER = "nanobot was interrupted before it could give you this answer:\n{answer}"
_ROLLED_OVER = """\
This conversation became {why}, so it goes on in a fresh session. The old one is kept: nanobot sessions show {name}"""
_INSTRUCTIONS = "\n\n---\n\n# Instructions of the Program\n\n{}"
_UNREAD = "Your last message was not read any more; send it again."
RESUMES_LATER = "nanobot is stopping; this goes on at the next start."
SEND_AGAIN_LATER = "nanobot is stopping; send the message again later."


class Pipeline:
    """Runs turns through their phases."""

    def __init__(self, deps: TurnDeps) -> None:
        self._deps = deps
        self._pace = Pace()
        """Limits how many turns enter their expensive phases at the same time."""
        self._last_requests: dict[str, tuple[LastRequest, int]] = {}
        """By session, with the number of rows that count for it."""
        self._remembered_rows = 0

    async def run(self, turn: Turn) -> TurnResult:
        """Run the turn to its end.

        Never raises for a failure of a model, a tool or the disk. When cancelled it keeps the text produced so far and
        ends as STOPPED; CancelledError is re-raised only if `turn.ending` is not set.
        """
        watchdog = Watchdog(turn, self._deps.timeouts)
        with _ends_cancellation(turn, watchdog):
            try:
                await self._answer(turn)
                await self._save_and_respond(turn)
            except asyncio.CancelledError:
                if watchdog.hung is not None:
                    await self._fail(turn, watchdog.hung, str(watchdog.hung))
                elif turn.ending is TurnEnding.INTERRUPT:
                    await finish(self._interrupt(turn))
                else:
                    await self._end_early(turn, TurnOutcome.STOPPED, _partial_answer(turn))
                raise
            except (RequestTooLongError, BudgetExceededError) as error:
                await self._end_early(turn, TurnOutcome.REFUSED, str(error), error)
            except NanobotError as error:
                await self._fail(turn, error, str(error))
            except Exception as error:  # one failed turn must not stop the loop
                log.exception("turn %s failed", turn.turn_id)
                text = f"Something broke inside nanobot: {type(error).__name__}: {error_text(error)}."
                await self._fail(turn, error, text)
            finally:
                watchdog.close()
                turn.trace.close()
        result = turn.result
        if turn.for_model and not result.later:
            facts = (turn.request.facts, result.outcome, result.text, result.error)
            with _ends_cancellation(turn, watchdog):
                await turn.request.hook_runner.notify(
                    "on_turn_end", lambda: TurnSeen(*facts, dict(result.usage), result.cost_usd)
                )
        return result

    async def _answer(self, turn: Turn) -> None:
        """Take the turn from its message to its result."""
        await self._begin(turn, TurnPhase.RESTORE)
        if await self._restore(turn):
            return
        if not turn.request.resumes:
            await self._begin(turn, TurnPhase.COMMAND)
            if await self._answer_command(turn):
                return
            if not turn.request.profile.is_subagent:
                await self._begin(turn, TurnPhase.COMPACT)
                await self._compact(turn)
        await self._begin(turn, TurnPhase.BUILD)
        if (built := await self._build(turn)) is not None:
            await self._begin(turn, TurnPhase.RUN)
            await self._run(turn, *built)

    async def _begin(self, turn: Turn, phase: TurnPhase) -> None:
        if phase in _PACED_PHASES:
            await self._pace.step()
        turn.progress.begin(phase)

    async def _restore(self, turn: Turn) -> bool:
        """Lock and load the session and its checkpoint. Return True if another turn has resumed this one already."""
        key, options, profile = turn.message.session_key, turn.request.options, turn.request.profile

        def waiting() -> None:
            hint = " Ctrl+C gives up; -s NAME uses another session." if turn.message.channel == "cli" else ""
            turn.emit(Notice(text=f"{key} is busy in another nanobot; waiting.{hint}"))

        if options.ephemeral:
            session = Session(key)
        else:
            session = await turn.resources.enter_async_context(self._deps.sessions.hold(key, waiting))
        while session.notices:
            turn.emit(Notice(text=session.notices.pop(0)))
        # what a program has read of an answer must survive a crash, so that it can go on reading there
        every_s = 0.0 if turn.message.turn_id else PARTIAL_EVERY_S
        checkpoint = Checkpoint(self._deps.turns_folder, key, every_s=every_s)
        if options.ephemeral:
            checkpoint.close()  # it records nothing then
        turn.restored = RestoredSession(session, checkpoint, checkpoint.load())
        turn.scope = profile.scope if profile.scope is not None else await self._deps.scope_of(turn.message)
        if not session.metadata.keys().isdisjoint(ORIGINAL_KEYS):
            await self._adopt_original_state(turn)
        if not turn.request.resumes:
            return False
        if turn.restored.interrupted.turn_id == turn.turn_id:
            turn.checkpoint = checkpoint  # so that a stop before BUILD discards it
            return False
        turn.set_result(TurnOutcome.ANSWERED, "")
        return True

    async def _adopt_original_state(self, turn: Turn) -> None:
        """Import, once, what the original nanobot left in this session's metadata: finished results, an active goal."""
        session = turn.session
        rows = rows_of_original(session.metadata, session.get_history())
        goal = goal_of_original(session.metadata)
        notice = await self._deps.goals.adopt(turn.message, goal, turn.scope) if goal else ""
        imported = {name: session.metadata.pop(name) for name in ORIGINAL_KEYS if name in session.metadata}
        try:
            await self._deps.sessions.append(session, *rows)
        except NanobotError:
            session.metadata.update(imported)  # the next turn tries again
            raise
        if notice:
            turn.emit(Notice(text=notice))

    async def _answer_command(self, turn: Turn) -> bool:
        """Answer a slash command, or a message that nobody waits for any more. Return False if it is for the model.

        An interrupted turn waits for the next message; `/new`, and reopening another conversation, discard it.
        """
        deps, message, command, session = self._deps, turn.message, turn.request.command, turn.session
        is_obsolete = message.origin is Origin.GOAL and not deps.goals.is_wanted(message.session_key)
        if is_obsolete or message.journal_key in session.metadata.get(FORGOTTEN_KEY, ()):
            turn.set_result(TurnOutcome.ANSWERED, "")
            return True
        if command is not None and command.name == "retry" and (again := last_request(session, message)):
            turn.request, command = replace(turn.request, message=again), None
        if command is None:
            if not turn.request.profile.is_subagent:
                await deps.goals.recall(message.session_key)
            return False
        assert turn.restored is not None  # noqa: S101 set by RESTORE
        began, checkpoint = session.created_at, turn.restored.checkpoint
        if deps.commands.canonical(command) == "new":
            checkpoint.discard()
        text = await deps.commands.answer(command, session, message, attended=turn.request.attended)
        if session.created_at != began:
            checkpoint.discard()
        turn.set_result(TurnOutcome.ANSWERED, text)
        return True

    async def _compact(self, turn: Turn) -> None:
        """Move old messages into memory, within a time limit; an unfinished consolidation changes nothing."""
        notice = asyncio.get_running_loop().call_later(_NOTICE_AFTER_S, turn.emit, Notice(text=_COMPACTING))
        try:
            async with asyncio.timeout(_COMPACT_S):
                await self._deps.memory.consolidation.compact(turn.session)
        except TimeoutError:
            log.warning("turn %s: compacting the session took more than %g s and was stopped", turn.turn_id, _COMPACT_S)
        finally:
            notice.cancel()

    async def _build(self, turn: Turn) -> tuple[Model, list[ChatMessage], Window] | None:
        """Store the message and its runtime context, before any model call. Return what to send: the model, the
        history and its window. Return None if the turn has its result.
        """
        assert turn.restored is not None  # noqa: S101 set by RESTORE
        turn.for_model = True
        deps, resumes, profile = self._deps, turn.request.resumes, turn.request.profile
        if not resumes and (denial := await _run_message_hooks(turn, turn.message)) is not None:
            turn.set_result(TurnOutcome.REFUSED, denial, "HookDenied", retryable=False)
            return None
        turn.trace.set_message(turn.message.content)
        session, interrupted = turn.restored.session, turn.restored.interrupted
        turn.checkpoint = turn.restored.checkpoint
        if not interrupted and (reason := deps.roll_over.reason(session, deps.clock.now())):
            name = await deps.roll_over.start_fresh(deps.sessions, session, reason)
            if name is not None:
                turn.emit(Notice(text=_ROLLED_OVER.format(why=reason, name=name)))
        history = session.get_history()
        if interrupted.started is None and (calls := pending_calls(history)):
            # not recorded which of them started: assume all, also if this turn is interrupted too
            await turn.checkpoint.calls_start([call.id for call in calls], durable=True)
        turn.checkpoint.accept(turn.turn_id, turn.message.to_json())
        turn.checkpoint.set_message_count(session.message_count)
        if interrupted:
            if (answer := find_answer(history, interrupted.turn_id)) is not None:
                text = outcome_text(history)
                if resumes:  # the crash came after the answer was stored
                    self._show_again(turn, history)
                    turn.set_result(TurnOutcome.FAILED if answer.get("error") else TurnOutcome.ANSWERED, text)
                    return None
                turn.emit(Notice(text=_UNDELIVERED_ANSWER.format(answer=text)))
            if interrupted.text.strip() and interrupted.after == session.message_count:
                partial_row: ChatMessage = {
                    "role": "assistant",
                    "content": interrupted.text,
                    "error": INTERRUPTED,
                    "turn_id": interrupted.turn_id,
                }
                await self._record(turn, partial_row)
                history = session.get_history()
            missing = missing_messages(history, interrupted)
            turn.pending_rows = [self._user_row(turn, message, history, turn_id) for turn_id, message in missing]
        if resumes:
            self._show_again(turn, history)
            if interrupted.tries >= MAX_ATTEMPTS:
                raise RepeatedlyInterruptedError(interrupted.tries)
        else:
            turn.pending_rows.append(self._user_row(turn, turn.message, history))
            if profile.joins_at_start:
                await self._accept_waiting(turn)
        if not pending_calls(history):
            await self._store_pending_rows(turn)
        rows, window = open_window(session)
        options = turn.request.options
        model = await (deps.models.get(options.model) if options.model else deps.models.of_session(session))
        limits = model.limits
        limits = replace(
            limits,
            max_steps=profile.max_steps or limits.max_steps,
            max_tokens=min(options.max_tokens or limits.max_tokens, limits.max_tokens),
            temperature=limits.temperature if options.temperature is None else options.temperature,
        )
        model = replace(model, limits=limits)
        turn.model_name = model.name
        model.provider.prepare()
        await profile.tools.refresh()
        return model, rows, window

    def _show_again(self, turn: Turn, history: Sequence[ChatMessage]) -> None:
        """Show readers of the feed what a resumed turn had shown before the crash."""
        if self._deps.feed is not None:
            self._deps.feed.restore(turn.turn_id, parts_of_turn(history, turn.turn_id))

    async def _run(self, turn: Turn, model: Model, history: list[ChatMessage], window: Window) -> None:
        deps, message, request, options = self._deps, turn.message, turn.request, turn.request.options
        session, checkpoint, profile = turn.session, turn.checkpoint, turn.request.profile
        assert turn.restored is not None and checkpoint is not None  # noqa: S101 set by BUILD

        async def record(row: ChatMessage) -> None:
            turn.check_not_abandoned()
            await self._record(turn, row)

        async def take_joining() -> list[ChatMessage]:
            turn.check_not_abandoned()
            await self._accept_waiting(turn)
            return await finish(self._store_pending_rows(turn))

        def on_partial_text(text: str) -> None:
            turn.progress.touch()  # text withheld by redaction causes no event
            checkpoint.partial(text)

        first = session.message_count - len(history)
        tools = profile.tools.snapshot()
        for tool in options.tools:
            tools.register(tool)
        for name in () if request.is_remembered else _SESSION_TOOLS:
            tools.unregister(name)
        context = ToolContext(
            session_key=message.session_key,
            address=message.address,
            turn_id=turn.turn_id,
            workspace=deps.workspace,
            clock=deps.clock,
            asker=message.provenance,
            origin=message.origin,
            sender_id=message.sender_id,
            attended=request.attended,
            quiet=message.quiet,
            answers=message.journal_key,
            scope=turn.scope,
        )
        context = replace(context, ask=partial(deps.approval_router.ask, context, turn.emit))
        spec = RunSpec(
            model=model,
            system=redact_known(self._system_prompt(turn, first + window.start)),
            history=history,
            tools=tools,
            context=context,
            emit=turn.emit,
            record=record,
            on_partial_text=on_partial_text,
            on_calls_start=checkpoint.calls_start,
            joining=take_joining,
            resumes=request.resumes or bool(pending_calls(history)),
            started_calls=turn.restored.interrupted.started,
            window=window,
            save_window_state=lambda window: save_window(session, first, window),
            last_request=LastRequest() if options.ephemeral else self._last_request_of(session.key),
            tool_policies=tuple(deps.tool_policies),
            hook_runner=request.hook_runner,
            untrusted_rows=[
                *untrusted_summary(session.metadata, session.key, turn.scope),
                *self._untrusted_rows(turn, message),
            ],
            review=deps.review and _is_reviewed(turn) and not model.is_stand_in,
            format_problem=options.format_problem,
            max_continuations=0 if options.max_tokens else MAX_CONTINUATIONS,
        )
        if profile.goal_session:
            spec = replace(spec, stop_reason=partial(deps.goals.stop_reason, profile.goal_session))
        turn.trace.record_request(spec)
        emit = turn.emit  # bound now: an abandoned run must not use the emitter that replaces it
        call_context = CallContext(
            message.origin if message.origin in BACKGROUND_ORIGINS else "turn",
            message.session_key,
            turn.turn_id,
            budget_usd=options.budget_usd,
            reasoning_effort=options.reasoning_effort,
            goal=bool(profile.goal_session),
            notify=lambda text: emit(Notice(text=text)),
        )
        with call_context_scope(call_context):
            result = await run_with_watchdog(turn, run(spec), deps.timeouts.cancel_grace)
        turn.result = replace(result, joined=turn.joining.count)

    def _system_prompt(self, turn: Turn, shown_from: int) -> str:
        """The prompt with the session summary, and a warning if messages before `shown_from` left the window and could
        not be summarised.
        """
        session, profile = turn.session, turn.request.profile
        summary = session_summary(session.metadata)
        if self._deps.memory.consolidation.failure_count(session.key):
            summary = add_omitted_note(summary, shown_from - session.last_consolidated)
        prompt = profile.prompt.build_system_prompt(summary, scope=turn.scope, began=session.created_at.date())
        instructions = turn.request.options.instructions
        return prompt + _INSTRUCTIONS.format(instructions) if instructions else prompt

    def _last_request_of(self, session_key: str) -> LastRequest:
        """Cached data about the session's last request, for the most recently used sessions."""
        recent = self._last_requests
        last_request, counted = recent.pop(session_key) if session_key in recent else (LastRequest(), 0)
        rows = len(last_request.legal)
        self._remembered_rows += rows - counted
        while recent and (len(recent) >= _MAX_REMEMBERED_SESSIONS or self._remembered_rows > _MAX_REMEMBERED_ROWS):
            self._remembered_rows -= recent.pop(next(iter(recent)))[1]
        recent[session_key] = last_request, rows
        return last_request

    async def _save_and_respond(self, turn: Turn) -> None:
        """Release the session, whose rows are on disk already, and emit the end."""
        await self._begin(turn, TurnPhase.SAVE)
        if turn.checkpoint is not None:
            turn.checkpoint.discard()
        await turn.resources.aclose()
        if not turn.request.is_remembered:
            self._deps.status.forget(turn.message.session_key)
        elif turn.restored is not None:
            self._deps.memory.on_session_released(turn.session, turn.scope)
        await self._begin(turn, TurnPhase.RESPOND)
        _respond(turn)

    async def _interrupt(self, turn: Turn) -> None:
        """nanobot stops: release the session and keep the checkpoint for the next start."""
        is_stored = turn.checkpoint is not None and not turn.request.options.ephemeral
        later = turn.request.resumes or turn.message.journal_key is not None or is_stored
        turn.set_result(TurnOutcome.STOPPED, RESUMES_LATER if later else SEND_AGAIN_LATER, later=later)
        if turn.checkpoint is not None:
            turn.checkpoint.close()
        await turn.resources.aclose()
        _respond(turn)

    async def _fail(self, turn: Turn, error: Exception, text: str) -> None:
        turn.failure = text = redact_all(text)
        self._deps.status.last_error = text
        if isinstance(error, ProviderError):
            self._deps.status.model_error = text
        if isinstance(error, ModelCallError) and not turn.scope.is_owners:
            text = f"I cannot answer now: {error.brief()}. My owner finds more in the log."
        await self._end_early(turn, TurnOutcome.FAILED, text, error)

    async def _end_early(self, turn: Turn, outcome: TurnOutcome, text: str, error: Exception | None = None) -> None:
        """End a turn that did not reach SAVE by itself."""
        if turn.message.fallback_text and outcome in (TurnOutcome.FAILED, TurnOutcome.REFUSED):
            text = f"{turn.message.fallback_text}\n\n({text})"
        name = type(error).__name__ if error is not None else None
        turn.set_result(outcome, text, name, retryable=getattr(error, "retryable", True))
        await finish(self._store_end(turn))

    async def _store_end(self, turn: Turn) -> None:
        """If the model gave no answer, store a placeholder, so that roles alternate and the prefix stays the same."""
        result = turn.result
        try:
            if turn.abandoned_text and turn.abandoned_text.strip():
                await self._record(turn, {"role": "assistant", "content": turn.abandoned_text, "error": INTERRUPTED})
            await self._store_pending_rows(turn)
            last = turn.session.last_message if turn.restored is not None else None
            if last is not None and last.get("turn_id") == turn.turn_id and not is_answer(last):
                row: ChatMessage = {
                    "role": "assistant",
                    "content": _NO_ANSWER[result.outcome],
                    "error": result.error or result.outcome,
                }
                if result.text:
                    row["reply"] = result.text
                if not result.retryable:
                    row["retryable"] = False
                await self._record(turn, row)
        except NanobotError as error:
            log.warning("turn %s: cannot store its end: %s", turn.turn_id, error)
        await self._save_and_respond(turn)

    async def _accept_waiting(self, turn: Turn) -> None:
        """Let waiting messages join the turn, up to its limit, unless a hook denies them.

        When cancelled, the remaining messages become `turn.joining.unread`: those from the lane get turns of their own.
        """
        joining = turn.joining
        messages = joining.waiting(turn.request.profile.max_joining - joining.count)
        joining.count += len(messages)
        history = turn.session.get_history() if messages else []
        for index, message in enumerate(messages):
            try:
                denial = await _run_message_hooks(turn, message)
            except asyncio.CancelledError:
                joining.unread += messages[index:]
                lane = [id(other) for other in joining.from_lane]
                if turn.ending is TurnEnding.STOP and any(id(other) not in lane for other in joining.unread):
                    turn.emit(Notice(text=_UNREAD))  # after an interrupt the next start reads them
                raise
            if denial is None:
                turn.pending_rows.append(self._user_row(turn, message, history))
            else:
                turn.emit(Notice(text=denial))

    async def _store_pending_rows(self, turn: Turn) -> list[ChatMessage]:
        """Store the rows that waited for a boundary, and return them."""
        rows, turn.pending_rows = turn.pending_rows, []
        for row in rows:
            await self._record(turn, row)
        return rows

    async def _record(self, turn: Turn, row: ChatMessage) -> None:
        if row["role"] == "assistant":  # no configured secret of a model's output is stored
            if isinstance(row["content"], str):
                row["content"] = redact_known(row["content"])
            if reasoning := row.get("reasoning_content"):
                row["reasoning_content"] = redact_known(reasoning)
            for call in row.get("tool_calls", ()):
                call["function"]["arguments"] = redact_known(call["function"]["arguments"])
        if row.get("tool_calls") and turn.checkpoint is not None:
            turn.checkpoint.start_step()
        row.setdefault("timestamp", timestamp(self._deps.clock))
        row.setdefault("turn_id", turn.turn_id)
        row.setdefault("provenance", Provenance.SYSTEM)
        if turn.request.options.ephemeral:
            turn.session.add_rows([row])
        else:
            await self._deps.sessions.append(turn.session, row)
        if turn.checkpoint is not None:
            turn.checkpoint.set_message_count(turn.session.message_count)

    def _user_row(
        self, turn: Turn, message: InboundMessage, history: Sequence[ChatMessage], turn_id: str = ""
    ) -> ChatMessage:
        """The message as stored in the session, with its runtime context."""
        untrusted = self._untrusted_rows(turn, message)  # before the note, which may consume an answer
        profile = turn.request.profile
        note = (profile.note or self._deps.goals.note_for)(message)
        answer_format = turn.request.options.answer_format if message is turn.message else ""
        context = profile.prompt.runtime_context(
            message.channel,
            message.chat_id,
            history,
            scope=turn.scope,
            note="\n\n".join(filter(None, [note, answer_format])),
            folder=message.folder if message.origin is Origin.CLI else "",
        )
        row: ChatMessage = {
            "role": "user",
            "content": with_attachments(message.content, message.media),
            "runtime_context": redact_known(context),
            "sender_id": message.sender_id,
            "origin": message.origin,
            "provenance": message.provenance,
            "turn_id": turn_id or turn.turn_id,
        }
        if untrusted:
            row["context_provenance"] = least_trusted(item["provenance"] for item in untrusted)
        if message.media:
            row["media"] = list(message.media)
        if message.in_group:
            row["in_group"] = True
        if turn.scope.chat:
            row["scope"] = turn.scope.chat
        if message.journal_key is not None:
            row["inbound"] = message.journal_key
        return row

    def _untrusted_rows(self, turn: Turn, message: InboundMessage) -> Sequence[ChatMessage]:
        """The untrusted content in the note beside this message."""
        if turn.request.profile.note is not None:
            return turn.request.profile.untrusted_rows()
        return self._deps.goals.untrusted_rows(message)


@contextmanager
def _ends_cancellation(turn: Turn, watchdog: Watchdog) -> Iterator[None]:
    """A cancellation by us ends here: the turn has its result. That of a caller passes."""
    try:
        yield
    except asyncio.CancelledError:
        if turn.ending is None and watchdog.hung is None:
            raise
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()


async def _run_message_hooks(turn: Turn, message: InboundMessage) -> str | None:
    """Run the message hooks and apply their changes. Return the reason if one denies the message."""
    hook_runner, joins = turn.request.hook_runner, message is not turn.message
    if not hook_runner.handles("on_message"):
        return None
    facts = replace(
        turn.request.facts, sender_id=message.sender_id, origin=message.origin, provenance=message.provenance
    )
    begins = not joins and turn.session.message_count == 0
    seen = MessageSeen(facts, message.content, tuple(message.media), joins, begins)
    passed = await hook_runner.filter("on_message", seen)
    if isinstance(passed, Deny):
        return passed.reason
    message.content = passed.seen.text
    message.provenance = least_trusted([message.provenance, passed.provenance])
    return None


def _partial_answer(turn: Turn) -> str:
    """The text that the model had produced when the turn was stopped."""
    rows = turn.session.get_history() if turn.restored is not None else []
    texts = [
        text_of(row["content"]) for row in rows if row.get("turn_id") == turn.turn_id and row["role"] == "assistant"
    ]
    return "\n\n".join(filter(None, texts))


def _is_reviewed(turn: Turn) -> bool:
    """Whether the answer is sent to somebody: a goal has its own review, and a quiet job sends none."""
    message = turn.message
    return (
        not turn.request.profile.is_subagent
        and message.origin is not Origin.GOAL
        and (message.origin is Origin.HEARTBEAT or not message.quiet)
    )


def _respond(turn: Turn) -> None:
    """Emit the end, and log the turn in one line, a failure as a warning. A job has a line of its own."""
    result, key = turn.result, turn.message.session_key
    turn.emit(
        TurnEnded(
            outcome=result.outcome,
            text=result.text,
            error=result.error,
            usage=dict(result.usage),
            cost_usd=result.cost_usd,
            model=turn.model_name,
            phase_seconds=dict(turn.progress.phase_seconds),
            later=result.later or None,
            joined=turn.joining.count or None,
        )
    )
    if not turn.for_model or result.later or turn.message.origin is Origin.CRON:
        return
    seconds = sum(turn.progress.phase_seconds.values())
    if result.outcome in (TurnOutcome.FAILED, TurnOutcome.REFUSED):
        reason = clip_line(turn.failure or result.text, _LOGGED_CHARS)
        log.warning("%s %s after %.1f s: %s", key, result.outcome, seconds, reason)
    else:
        log.info("%s %s", key, result.summary(seconds, turn.progress.tool_count))
