"""The run: ask the model, run the tools it asks for, again, until there is an answer.

A pure loop over a RunSpec. It knows no screen, no storage, no bus and no config: what happens goes out as turn events,
what must be kept goes to `record` before the next thing begins.
"""

import asyncio
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

from nanobot.agent import turn as events
from nanobot.agent.hooks import AnswerSeen, RequestSeen
from nanobot.agent.run.cut import (
    BROKEN_OFF,
    GO_ON,
    TAKEN_UP,
    Cut,
    account_of_cut,
    is_broken_off,
    open_calls,
    parts_of_answer,
    results_at_end,
)
from nanobot.agent.run.hooked import Ruled, facts_of, passed_calls, seen_call
from nanobot.agent.run.loop_guard import LoopGuard
from nanobot.agent.run.requests import Requests, Room
from nanobot.agent.run.rows import Rows
from nanobot.agent.run.spec import RunResult, RunSpec
from nanobot.agent.run.speech import Speech
from nanobot.agent.run.tool_calls import ToolBench, outcome_unknown, run_calls
from nanobot.agent.tools.base import Effect, ToolContext
from nanobot.agent.turn import TurnOutcome
from nanobot.errors import BudgetExceededError, ProviderError, RequestTooLongError
from nanobot.messages.types import INTERRUPTED, least_trusted, text_of
from nanobot.providers.base import Finished, LLMResponse, ToolCallRequest, call_context, calling_for
from nanobot.providers.errors import ContextOverflowError, StreamCutError
from nanobot.security.vault import masked
from nanobot.usage.types import add_tokens
from nanobot.utils.aio import finish

MOST_CONTINUATIONS = 3
MOST_BROKEN_OFF = 1
"""How often a run asks for the rest of an answer that broke off after its beginning was shown."""
_TAKEN_UP = (
    "nanobot was interrupted in the middle of your work on this and has been started again. "
    "What had finished is above. Go on from there; do nothing twice."
)
_SAY_SOMETHING = "Your last message was empty. Answer the request, or say what you did and what is missing."
_DOUBTED = "The model said that something was done, but no tool did it; it is asked again."
_STEPS_USED_UP = (
    "You have used all {steps} steps of this turn. Call no more tools. Say in a few sentences what is done, "
    "what is not, and what the next step would be."
)


async def run(spec: RunSpec) -> RunResult:
    """Run until an answer or a limit.

    Raises ProviderError when a model fails, RequestTooLongError where none could read what is asked, StorageError when
    a row cannot be kept, BudgetExceededError where not even the first call may be paid for; what was said is recorded.
    Cancelling is safe at any point: tools are stopped, text that was shown is recorded, events stay in pairs.
    """
    return await _Run(spec).run()


class _Run:
    """A run under way."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._rows = Rows(spec.history, spec.context, spec.record)
        self._schemas = spec.tools.get_definitions()
        self._requests = Requests(_room(spec), spec.window, spec.keep_window, spec.remembered)
        self._guard = LoopGuard()
        self._doubted = False
        self._steps = 0
        self._usage: dict[str, int] = {}
        self._cost_usd: float | None = None
        self._said: list[str] = []
        """The parts of an answer that comes in several."""

    async def run(self) -> RunResult:
        spec = self._spec
        spec.emit(events.RunStarted(session_key=spec.context.session_key, model=spec.model.name))
        try:
            if spec.cut is not None:
                await self._take_up(spec.cut)
            return await self._until_answer()
        finally:
            spec.emit(events.RunEnded(steps=self._steps, usage=dict(self._usage), cost_usd=self._cost_usd))

    async def _take_up(self, cut: Cut) -> None:
        """Bring the history to where a model can be asked again: no call without its result, no answer half said."""
        if open_calls(self._rows.all):
            await self._step_of_before(cut)
            await self._rows.tell_model(_TAKEN_UP)
            await self._join()
        elif parts := parts_of_answer(self._rows.all, self._spec.context.turn_id):
            self._said += parts
            self._spec.emit(events.Notice(text="nanobot was interrupted in the middle of its answer and goes on."))
            if self._rows.last["role"] == "assistant":  # else it was told already, or a person goes on
                await self._rows.tell_model(BROKEN_OFF)

    async def _step_of_before(self, cut: Cut) -> None:
        """End the step whose calls were cut off: what only reads or never began runs now, the rest is unknown."""
        spec, step = self._spec, self._steps
        self._steps += 1
        spec.emit(events.StepStarted(step=step))
        try:
            bench = self._bench()
            calls, finished = open_calls(self._rows.all), len(results_at_end(self._rows.all))
            began = {call.id for call in calls if cut.started is None or call.id in cut.started}
            unknown = [call for call in calls if call.id in began and bench.effect_of(call) is not Effect.READ]
            again = [call for call in calls if call not in unknown]
            spec.emit(events.Notice(text=account_of_cut(finished, again, unknown)))
            for call in unknown:
                self._rows.all.append(await outcome_unknown(call, bench))
            _, ruled = await passed_calls(again, spec.hook_wall, bench.context, may_change=False)
            self._rows.take_in(await run_calls(again, replace(bench, ruled=ruled)))
        finally:
            spec.emit(events.StepEnded(step=step, finish_reason=TAKEN_UP, usage={}))

    async def _until_answer(self) -> RunResult:
        said, nudged, continued, broken = self._said, False, 0, 0
        while self._steps < self._spec.model.limits.max_steps:
            if self._steps and (why := self._spec.enough()):
                return await self._give_up(why)
            try:
                response = await self._step()
            except BudgetExceededError as error:
                if self._steps == 1:
                    raise  # nothing was done yet: the message is refused
                return await self._give_up(str(error), type(error).__name__)
            except StreamCutError:  # quick, and mostly the line's fault; a silence has cost its minute already
                if not is_broken_off(self._rows.last) or broken == MOST_BROKEN_OFF:
                    raise
                broken += 1
                said.append(text_of(self._rows.last["content"]))
                self._spec.emit(events.Notice(text="The answer broke off; asking for the rest of it."))
                await self._rows.tell_model(BROKEN_OFF)
                continue
            text = response.content or ""
            if response.tool_calls:
                said.clear()  # that was said on the way, not in the answer
                if self._guard.over is not None:
                    return await self._give_up(self._guard.over)
                await self._join()
            elif response.finish_reason == "length" and text and continued < MOST_CONTINUATIONS:
                continued += 1
                said.append(text)
                await self._rows.tell_model(GO_ON)
            elif text.strip() or said:
                answer = "".join([*said, text])
                remark = await self._doubt(answer)
                if remark is None:
                    continue
                cut = response.finish_reason == "length"
                return self._result(TurnOutcome.PARTIAL if cut else TurnOutcome.ANSWERED, f"{answer}\n\n{remark}")
            elif not nudged:
                nudged = True
                await self._rows.tell_model(_SAY_SOMETHING)
            else:
                return await self._give_up("The model gave no answer, twice.")
        return await self._out_of_steps("".join(said))

    async def _doubt(self, answer: str) -> str | None:
        """What is to be said behind an answer: nothing, or that what it claims was not done.

        None where the model was asked to do what it claims, or to take it back: once in a run.
        """
        if self._spec.context.hears_report or _can_only_look(self._spec):
            return ""  # what was done, somebody else did
        from nanobot.agent.run.claims.judge import (
            claim_in,
            nothing_was_done,
            one_more_step,
        )  # patterns; not before a request

        tools = self._spec.tools.names
        claim, called = claim_in(answer, self._rows.all, self._spec.context.turn_id, tools)
        if claim is None:
            return ""
        if self._doubted:
            return nothing_was_done(answer, called)
        self._doubted = True
        self._said.clear()
        self._spec.emit(events.Notice(text=_DOUBTED))
        await self._rows.tell_model(one_more_step(claim, tools))
        return None

    async def _out_of_steps(self, said: str) -> RunResult:
        """One last word without tools; what the model then says is its account, the line behind it is ours."""
        steps = self._steps
        limit = f"Stopped at the limit of {steps} steps; the task may be unfinished."
        if said:
            return self._result(TurnOutcome.PARTIAL, f"{said}\n\n({limit})")
        await self._rows.tell_model(_STEPS_USED_UP.format(steps=steps))
        try:
            response = await self._step(may_call=False)
        except (ProviderError, RequestTooLongError):
            return await self._give_up(limit)
        if not (response.content or "").strip():
            return await self._give_up(limit)
        return self._result(TurnOutcome.PARTIAL, f"{response.content}\n\n({limit})")

    async def _step(self, *, may_call: bool = True) -> LLMResponse:
        """Ask once, keep the answer, run what it asks for. The results are in the history when this returns."""
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
                if not self._requests.overflowed(self._rows.all, error.window_tokens):
                    raise
                spec.emit(events.Notice(text="That was too long for the model; asking again with less of what is old."))
                response = await self._ask()
            usage, cost, reason = response.usage, response.cost_usd, response.finish_reason
            self._add_up(usage, cost)
            calls = _distinct(response) if may_call else []
            calls, ruled = await self._passed(response, calls, step)
            response = replace(response, tool_calls=calls)
            if calls or response.content:
                await self._rows.keep(self._rows.of_model(response))
            if calls:
                self._rows.take_in(await run_calls(calls, self._bench(ruled)))
            return response
        finally:
            spec.emit(events.StepEnded(step=step, finish_reason=reason, usage=usage, cost_usd=cost))

    async def _passed(
        self, response: LLMResponse, calls: Sequence[ToolCallRequest], step: int
    ) -> tuple[list[ToolCallRequest], Ruled]:
        """The calls as hooks leave them. That takes time: cut off meanwhile, what was shown is kept all the same."""
        wall, context = self._spec.hook_wall, self._context()
        try:
            await wall.answer(lambda: _seen_answer(response, calls, context, step))
            return await passed_calls(calls, wall, context)
        except BaseException:
            await self._keep_interrupted(response.content or "")
            raise

    def _context(self) -> ToolContext:
        return replace(self._spec.context, provenance=self._rows.trust, entered=self._rows.entered)

    def _bench(self, ruled: Ruled | None = None) -> ToolBench:
        spec = self._spec
        return ToolBench(
            tools=spec.tools,
            context=self._context(),
            emit=spec.emit,
            record=spec.record,
            max_result_chars=spec.model.limits.max_result_chars,
            guard=self._guard,
            calls_start=spec.calls_start,
            shown=self._requests.shown,
            hooks=spec.hooks,
            hook_wall=spec.hook_wall,
            ruled=ruled or {},
            rows=self._rows.all,
            entered=self._rows.enters,
            told=spec.told,
        )

    async def _join(self) -> None:
        """A tool boundary: what the person has said meanwhile is read with the next request."""
        joined = await self._spec.joining()
        self._rows.take_in(joined)
        self._rows.enters(least_trusted(row["provenance"] for row in joined))
        if joined:
            self._guard.begin_anew()

    def _add_up(self, usage: dict[str, int], cost_usd: float | None) -> None:
        add_tokens(self._usage, usage)
        if cost_usd is not None:
            self._cost_usd = (self._cost_usd or 0) + cost_usd

    async def _ask(self) -> LLMResponse:
        """One model call, streamed to the sink. Text of an answer that broke off is kept before the error goes up."""
        spec, limits = self._spec, self._spec.model.limits
        speech = Speech(spec.emit, spec.partial)
        response: LLMResponse | None = None
        request = await self._requests.build(self._rows.all)
        await spec.hook_wall.request(
            lambda: RequestSeen(
                facts_of(spec.context), self._steps - 1, spec.model.name, deepcopy(request), tuple(spec.tools.names)
            )
        )
        stream = spec.model.provider.chat_stream(
            request, self._schemas or None, spec.model.name, self._requests.reply, limits.temperature
        )
        try:
            with calling_for(replace(call_context(), prompt_tokens=self._requests.tokens)):
                async for delta in stream:
                    if isinstance(delta, Finished):
                        response = delta.response
                        speech.end(final=not response.tool_calls)
                    elif response is None:
                        speech.add(delta)
        except ProviderError:
            if response is None:  # else the answer is whole, and only the good-bye failed
                await self._keep_broken_off(speech)
                raise
        except (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
            await self._keep_broken_off(speech)
            raise
        except BaseException as error:  # somebody's own provider: what would end the loop ends the turn alone
            await self._keep_broken_off(speech)
            raise RuntimeError(f"the provider raised {type(error).__name__}: {error}") from error
        if response is None:
            raise StreamCutError(f"{type(spec.model.provider).__name__} ended its answer without finishing it")
        self._requests.answered(response.usage.get("prompt_tokens", 0))
        return response

    async def _keep_broken_off(self, speech: Speech) -> None:
        speech.end(final=False)
        await self._keep_interrupted(speech.text)

    async def _keep_interrupted(self, text: str) -> None:
        if text.strip():
            row = self._rows.of_model(LLMResponse(text))
            row["error"] = INTERRUPTED
            await finish(self._rows.keep(row))

    async def _give_up(self, why: str, error: str | None = None) -> RunResult:
        """End here, with what was done by code's own count, since the model does not say it."""
        text = self._rows.account(why)
        await self._rows.tell_person(text)
        return replace(self._result(TurnOutcome.PARTIAL, text), error=error)

    def _result(self, outcome: TurnOutcome, text: str) -> RunResult:
        return RunResult(outcome, masked(text.strip()), dict(self._usage), self._steps, self._cost_usd)


def _can_only_look(spec: RunSpec) -> bool:
    """Whether it has tools, and none that acts: as who reviews what others did."""
    return bool(len(spec.tools)) and all(tool.effect is Effect.READ for tool in spec.tools)


def _room(spec: RunSpec) -> Room:
    limits = spec.model.limits
    return Room(
        model=spec.model.name,
        window_tokens=limits.window_tokens,
        max_tokens=limits.max_tokens,
        system=spec.system,
        tools_tokens=spec.tools.tokens,
        most_rows=limits.window_messages,
        rereadable=frozenset(tool.name for tool in spec.tools if tool.effect is Effect.READ),
    )


def _seen_answer(
    response: LLMResponse, calls: Sequence[ToolCallRequest], context: ToolContext, step: int
) -> AnswerSeen:
    shown = tuple(seen_call(call, context) for call in calls)
    return AnswerSeen(
        facts_of(context),
        step,
        response.content or "",
        shown,
        response.finish_reason,
        dict(response.usage),
        response.cost_usd,
    )


def _distinct(response: LLMResponse) -> list[ToolCallRequest]:
    """The calls with ids that tell them apart; the last one not run if the length limit cut the answer there."""
    seen: set[str] = set()
    calls: list[ToolCallRequest] = []
    for index, call in enumerate(response.tool_calls):
        call_id = call.id or f"call_{index}"
        while call_id in seen:
            call_id = f"{call_id}_{index}"
        seen.add(call_id)
        calls.append(replace(call, id=call_id))
    if calls and response.finish_reason == "length":
        cut = "the answer was cut off by the length limit before the call was whole; write less at once"
        calls[-1] = replace(calls[-1], problem=cut)
    return calls
