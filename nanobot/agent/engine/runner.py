"""The run: call the model, run its tool calls, repeat until there is an answer.

A loop over a RunSpec, without knowledge of screen, storage, bus or config: it emits turn events, and passes each row to
`record` before it continues.
"""

import asyncio
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

from nanobot.agent import events
from nanobot.agent.engine.answer_review import MAX_SENT_BACK, SENT_BACK, review_answer
from nanobot.agent.engine.loop_guard import LoopGuard
from nanobot.agent.engine.spec import RunSpec
from nanobot.agent.engine.stream import StreamAssembler
from nanobot.agent.engine.tool_calls import StepContext, outcome_unknown, run_calls
from nanobot.agent.engine.transcript import (
    CONTINUE_INTERRUPTED,
    CONTINUE_TRUNCATED,
    FINISH_RESUMED,
    Transcript,
    describe_interruption,
    is_interrupted,
    parts_of_answer,
    pending_calls,
    results_at_end,
)
from nanobot.agent.events import TurnOutcome, TurnResult
from nanobot.agent.hooks import AnswerSeen, RequestSeen
from nanobot.agent.hooks.runner import HookVerdicts, call_seen, filter_calls, turn_facts
from nanobot.agent.tools.base import Effect, ToolContext
from nanobot.agent.window.fit import RequestBuilder, RequestRoom
from nanobot.errors import BudgetExceededError, NanobotError, ProviderError, RequestTooLongError
from nanobot.messages.types import INTERRUPTED, ChatMessage, Provenance, least_trusted, text_of
from nanobot.providers.base import Finished, LLMResponse, ToolCallRequest, call_context, call_context_scope
from nanobot.providers.errors import ContextOverflowError, StreamCutError
from nanobot.security.secrets import redact_known
from nanobot.usage.types import add_tokens
from nanobot.utils.aio import finish

MAX_FORMAT_REPAIRS = 2
MAX_STREAM_RETRIES = 1
"""How often a run asks for the rest of an answer whose stream broke off."""
_RESUMED = (
    "nanobot was interrupted in the middle of your work on this and has been started again. "
    "What had finished is above. Go on from there; do nothing twice."
)
_EMPTY_ANSWER = "Your last message was empty. Answer the request, or say what you did and what is missing."
_CLAIM_RETRY = "The model said that something was done, but no tool did it; asking it again."
_LONG_ANSWER_CHARS = 2_000
"""A longer answer is judged in a thread, so that the event loop does not stall."""
_NOT_REVIEWED = "This answer was not reviewed (agents.defaults.review): {why}"
_STEP_LIMIT = (
    "You have used all {steps} steps of this turn. Call no more tools. Say in a few sentences what is done, "
    "what is not, and what the next step would be."
)


async def run(spec: RunSpec) -> TurnResult:
    """Run until there is an answer or a limit is reached.

    Raises ProviderError if a model fails, RequestTooLongError if the request does not fit the window, StorageError if
    a row cannot be recorded, BudgetExceededError if the first call exceeds the budget; text produced so far is
    recorded. Cancelling is safe at any point: tools are stopped, shown text is recorded, events stay in pairs.
    """
    return await _Run(spec).run()


class _Run:
    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._transcript = Transcript(spec.history, spec.context, spec.record)
        self._schemas = spec.tools.get_definitions()
        limits = spec.model.limits
        room = RequestRoom(
            spec.model.name,
            limits.window_tokens,
            limits.max_tokens,
            spec.system,
            spec.tools.tokens,
            limits.window_messages,
        )
        self._requests = RequestBuilder(room, spec.window, spec.save_window_state, spec.last_request)
        self._guard = LoopGuard()
        self._claim_checked = False
        self._steps = 0
        self._usage: dict[str, int] = {}
        self._cost_usd: float | None = None
        self._answer_parts: list[str] = []
        """Earlier parts of an answer that was continued."""
        self._draft: ChatMessage | None = None
        """An answer that is recorded once its review is done."""
        self._sent_back_count = 0
        self._format_repairs = 0

    async def run(self) -> TurnResult:
        spec = self._spec
        spec.emit(events.RunStarted(session_key=spec.context.session_key, model=spec.model.name))
        try:
            if spec.resumes:
                await self._resume()
            return await self._until_answer()
        finally:
            spec.emit(events.RunEnded(steps=self._steps, usage=dict(self._usage), cost_usd=self._cost_usd))

    async def _resume(self) -> None:
        """Complete an interrupted history: give pending calls their results, or ask for the rest of an answer."""
        if pending_calls(self._transcript.all):
            await self._finish_interrupted_step()
            await self._transcript.add_instruction(_RESUMED)
            await self._accept_joining()
        elif parts := parts_of_answer(self._transcript.all, self._spec.context.turn_id):
            self._answer_parts += parts
            self._spec.emit(events.Notice(text="nanobot was interrupted in the middle of its answer and continues it."))
            if self._transcript.last["role"] == "assistant":  # else the instruction or a new message follows already
                await self._transcript.add_instruction(CONTINUE_INTERRUPTED)

    async def _finish_interrupted_step(self) -> None:
        """Finish the step whose calls were interrupted: run those that only read or never started; the outcome of the
        others is unknown.
        """
        spec, step = self._spec, self._steps
        self._steps += 1
        spec.emit(events.StepStarted(step=step))
        try:
            ctx = self._step_context()
            calls, finished = pending_calls(self._transcript.all), len(results_at_end(self._transcript.all))
            started_ids = {call.id for call in calls if spec.started_calls is None or call.id in spec.started_calls}
            unknown = [call for call in calls if call.id in started_ids and ctx.effect_of(call) is not Effect.READ]
            rerun = [call for call in calls if call not in unknown]
            spec.emit(events.Notice(text=describe_interruption(finished, rerun, unknown)))
            for call in unknown:
                self._transcript.all.append(await outcome_unknown(call, ctx))
            _, hook_verdicts = await filter_calls(rerun, spec.hook_runner, ctx.context, may_change=False)
            self._transcript.extend(await run_calls(rerun, replace(ctx, hook_verdicts=hook_verdicts)))
        finally:
            spec.emit(events.StepEnded(step=step, finish_reason=FINISH_RESUMED, usage={}))

    async def _until_answer(self) -> TurnResult:
        parts, empty_retried, continuations, stream_retries = self._answer_parts, False, 0, 0
        while self._steps < self._spec.model.limits.max_steps:
            if self._steps and (reason := self._spec.stop_reason()):
                return await self._end_early(reason)
            try:
                response = await self._step()
            except BudgetExceededError as error:
                if self._steps == 1:
                    raise  # nothing done yet: refuse the message
                return await self._end_early(str(error), error)
            except StreamCutError:  # fails fast, mostly a network error; a timeout has taken its minute already
                if not is_interrupted(self._transcript.last) or stream_retries == MAX_STREAM_RETRIES:
                    raise
                stream_retries += 1
                parts.append(text_of(self._transcript.last["content"]))
                self._spec.emit(events.Notice(text="The answer broke off; asking for the rest of it."))
                await self._transcript.add_instruction(CONTINUE_INTERRUPTED)
                continue
            text = response.content or ""
            if response.tool_calls:
                parts.clear()  # interim text, not part of the answer
                if self._guard.stop_message is not None:
                    return await self._end_early(self._guard.stop_message)
                await self._accept_joining()
            elif response.finish_reason == "length" and text and continuations < self._spec.max_continuations:
                continuations += 1
                parts.append(text)
                await self._record_draft()
                await self._transcript.add_instruction(CONTINUE_TRUNCATED)
            elif text.strip() or parts:
                answer = "".join([*parts, text])
                if (note := await self._judge(answer)) is None:
                    continue
                is_truncated = response.finish_reason == "length"
                return self._result(
                    TurnOutcome.PARTIAL if is_truncated else TurnOutcome.ANSWERED, f"{answer}\n\n{note}"
                )
            elif not empty_retried:
                empty_retried = True
                await self._record_draft()
                await self._transcript.add_instruction(_EMPTY_ANSWER)
            else:
                await self._record_draft()
                return await self._end_early("The model gave no answer, twice.")
        return await self._answer_without_steps("".join(parts))

    async def _judge(self, answer: str) -> str | None:
        """Return the note to append to an answer, mostly none. Return None if the model was asked for another one:
        in the right form, without a claim that nothing supports (once), or as the review wants it.
        """
        spec, trust = self._spec, self._transcript.trust
        problem = spec.format_problem(answer) if spec.format_problem is not None else ""
        if problem and self._format_repairs < MAX_FORMAT_REPAIRS:
            self._format_repairs += 1
            await self._ask_again(problem, trust)
            return None
        note = await self._check_claim(answer)
        if note is None or self._draft is None:
            return note
        review = None
        if self._sent_back_count < MAX_SENT_BACK:
            try:
                review = await review_answer(spec.model, self._transcript.all, spec.context.turn_id, answer)
            except BaseException:
                self._draft["error"] = INTERRUPTED
                await finish(self._record_draft())
                raise
            self._add_usage(dict(review.usage), review.cost_usd)
            if review.passed is False:
                self._sent_back_count += 1
                await self._ask_again(SENT_BACK.format(reasons=review.reasons), trust)
                return None
        await self._record_draft()
        if review is not None and review.passed is None:
            spec.emit(events.Notice(text=_NOT_REVIEWED.format(why=review.reasons)))
        return note

    async def _check_claim(self, answer: str) -> str | None:
        """Return the note to append to an answer: empty, or that what it claims was not done. Return None if the model
        was asked to do it or to take it back.
        """
        spec, tools = self._spec, self._spec.tools
        if spec.context.answers_report or (len(tools) and all(tool.effect is Effect.READ for tool in tools)):
            return ""  # the actions it reports were done by others
        if spec.format_problem is not None:
            return ""  # data for a program: a note would spoil its form
        from nanobot.agent.claims import claim_feedback, claim_note, find_claim  # compiles many patterns; lazy

        arguments = (answer, list(self._transcript.all), tools, spec.context.turn_id)
        is_long = len(answer) > _LONG_ANSWER_CHARS
        claim, called = await asyncio.to_thread(find_claim, *arguments) if is_long else find_claim(*arguments)
        if claim is None:
            return ""
        if self._claim_checked:
            return claim_note(answer, called)
        self._claim_checked = True
        spec.emit(events.Notice(text=_CLAIM_RETRY))
        await self._ask_again(claim_feedback(claim, tools.names))
        return None

    async def _ask_again(self, instruction: str, provenance: Provenance = Provenance.SYSTEM) -> None:
        """Ask the model for another answer. `provenance` is that of what the instruction quotes."""
        self._answer_parts.clear()
        await self._record_draft(sent_back=True)
        await self._transcript.add_instruction(instruction, provenance)

    async def _record_draft(self, *, sent_back: bool = False) -> None:
        """Record the draft, if there is one."""
        row, self._draft = self._draft, None
        if row is None:
            return
        if sent_back:
            row["sent_back"] = True
        await self._transcript.append(row)

    async def _answer_without_steps(self, text: str) -> TurnResult:
        """Ask once more, without tools, for a summary, and append that the step limit was reached."""
        steps = self._steps
        limit = f"Stopped at the limit of {steps} steps; the task may be unfinished."
        if text:
            return self._result(TurnOutcome.PARTIAL, f"{text}\n\n({limit})")
        await self._transcript.add_instruction(_STEP_LIMIT.format(steps=steps))
        try:
            response = await self._step(may_call=False)
        except (ProviderError, RequestTooLongError):
            return await self._end_early(limit)
        if not (response.content or "").strip():
            return await self._end_early(limit)
        return self._result(TurnOutcome.PARTIAL, f"{response.content}\n\n({limit})")

    async def _step(self, *, may_call: bool = True) -> LLMResponse:
        """Call the model, record its response and run its tool calls. Their results are in the transcript on return."""
        spec, step = self._spec, self._steps
        self._steps += 1
        spec.emit(events.StepStarted(step=step))
        usage: dict[str, int] = {}
        cost: float | None = None
        reason = INTERRUPTED
        try:
            try:
                response = await self._ask()
            except ContextOverflowError as error:
                if not self._requests.handle_overflow(self._transcript.all, error.window_tokens):
                    raise
                spec.emit(events.Notice(text="The request was too long for the model; asking again with less."))
                response = await self._ask()
            usage, cost, reason = response.usage, response.cost_usd, response.finish_reason
            self._add_usage(usage, cost)
            calls = _unique_calls(response) if may_call else []
            hook_verdicts: HookVerdicts = {}
            if spec.hook_runner:
                calls, hook_verdicts = await self._run_hooks(response, calls, step)
            if calls or response.tool_calls:
                response = replace(response, tool_calls=calls)
            if calls or response.content:
                row = self._transcript.model_row(response)
                if spec.review and may_call and not calls:
                    self._draft = row
                else:
                    await self._transcript.append(row)
            if calls:
                self._transcript.extend(await run_calls(calls, self._step_context(hook_verdicts)))
            return response
        finally:
            spec.emit(events.StepEnded(step=step, finish_reason=reason, usage=usage, cost_usd=cost))

    async def _run_hooks(
        self, response: LLMResponse, calls: Sequence[ToolCallRequest], step: int
    ) -> tuple[list[ToolCallRequest], HookVerdicts]:
        """Run the hooks on the answer and its calls. If interrupted, record the text that was shown."""
        hook_runner, context = self._spec.hook_runner, self._context()

        def answer_seen() -> AnswerSeen:
            return AnswerSeen(
                turn_facts(context),
                step,
                response.content or "",
                tuple(call_seen(call, context) for call in calls),
                response.finish_reason,
                dict(response.usage),
                response.cost_usd,
            )

        try:
            await hook_runner.notify("on_answer", answer_seen)
            return await filter_calls(calls, hook_runner, context)
        except BaseException:
            await self._record_interrupted(response.content or "")
            raise

    def _context(self) -> ToolContext:
        return replace(self._spec.context, provenance=self._transcript.trust, entered=self._transcript.entered)

    def _step_context(self, hook_verdicts: HookVerdicts | None = None) -> StepContext:
        context, shown = self._context(), self._requests.shown
        return StepContext(self._spec, context, self._guard, self._transcript, shown, hook_verdicts or {})

    async def _accept_joining(self) -> None:
        """Add messages that arrived meanwhile; called at each tool boundary."""
        joined = await self._spec.joining()
        self._transcript.extend(joined)
        self._transcript.lower_entered(least_trusted(row["provenance"] for row in joined))
        if joined:
            self._guard.reset()

    def _add_usage(self, usage: dict[str, int], cost_usd: float | None) -> None:
        add_tokens(self._usage, usage)
        if cost_usd is not None:
            self._cost_usd = (self._cost_usd or 0) + cost_usd

    async def _ask(self) -> LLMResponse:
        """Call the model once and stream its response. If it breaks off, record its text before raising."""
        spec, limits = self._spec, self._spec.model.limits
        assembler = StreamAssembler(
            spec.emit, spec.on_partial_text, hold_text=spec.review, continues=bool(self._answer_parts)
        )
        response: LLMResponse | None = None
        request = self._requests.build(self._transcript.all)
        await spec.hook_runner.notify(
            "on_request",
            lambda: RequestSeen(
                turn_facts(spec.context), self._steps - 1, spec.model.name, deepcopy(request), tuple(spec.tools.names)
            ),
        )
        stream = spec.model.provider.chat_stream(
            request, self._schemas or None, spec.model.name, self._requests.reply, limits.temperature
        )
        try:
            with call_context_scope(replace(call_context(), prompt_tokens=self._requests.tokens)):
                async for delta in stream:
                    if isinstance(delta, Finished):
                        response = delta.response
                        assembler.end(final=not response.tool_calls)
                    elif response is None:
                        assembler.add(delta)
        except ProviderError:
            if response is None:  # else the response is complete and only closing the stream failed
                await self._record_partial(assembler)
                raise
        except (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
            await self._record_partial(assembler)
            raise
        except BaseException as error:  # from a third-party provider; end the turn, not the event loop
            await self._record_partial(assembler)
            raise RuntimeError(f"the provider raised {type(error).__name__}: {error}") from error
        if response is None:
            raise StreamCutError(f"{type(spec.model.provider).__name__} ended its answer without finishing it")
        self._requests.record_usage(response.usage.get("prompt_tokens", 0))
        return response

    async def _record_partial(self, assembler: StreamAssembler) -> None:
        assembler.end(final=False, interrupted=True)
        await self._record_interrupted(assembler.text)

    async def _record_interrupted(self, text: str) -> None:
        if text.strip():
            row = self._transcript.model_row(LLMResponse(text))
            row["error"] = INTERRUPTED
            await finish(self._transcript.append(row))

    async def _end_early(self, reason: str, error: NanobotError | None = None) -> TurnResult:
        """End with a generated summary, since the model gave none."""
        text = self._transcript.summarize_turn(reason)
        await self._transcript.add_fallback_answer(text)
        result = self._result(TurnOutcome.PARTIAL, text)
        return result if error is None else replace(result, error=type(error).__name__, retryable=error.retryable)

    def _result(self, outcome: TurnOutcome, text: str) -> TurnResult:
        text, turn_id = redact_known(text.strip()), self._spec.context.turn_id
        return TurnResult(outcome, text, turn_id=turn_id, usage=dict(self._usage), cost_usd=self._cost_usd)


def _unique_calls(response: LLMResponse) -> list[ToolCallRequest]:
    """The calls with unique ids. The last one gets a problem if the length limit cut the response."""
    seen_ids: set[str] = set()
    calls: list[ToolCallRequest] = []
    for index, call in enumerate(response.tool_calls):
        call_id = call.id or f"call_{index}"
        while call_id in seen_ids:
            call_id = f"{call_id}_{index}"
        seen_ids.add(call_id)
        calls.append(replace(call, id=call_id))
    if calls and response.finish_reason == "length":
        problem = "the answer was cut off by the length limit before the call was complete; write less at once"
        calls[-1] = replace(calls[-1], problem=problem)
    return calls
