"""The run: ask the model, run the tools it asks for, again, until there is an answer.

A pure loop over a RunSpec. It knows no screen, no storage, no bus and no config: what happens goes out as turn events,
what must be kept goes to `record` before the next thing begins.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from nanobot.agent import turn as events
from nanobot.agent.run.allowance import MOST_ROWS
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
from nanobot.agent.run.hooks import ToolHook
from nanobot.agent.run.loop_guard import LoopGuard
from nanobot.agent.run.outside import stored_provenance
from nanobot.agent.run.requests import Remembered, Requests, Room
from nanobot.agent.run.speech import Speech
from nanobot.agent.run.tool_calls import CallsStart, Record, ToolBench, nobody_asks, outcome_unknown, run_calls
from nanobot.agent.run.window import Window
from nanobot.agent.tools.base import Effect, ToolContext
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.turn import Emitter, TurnOutcome
from nanobot.errors import BudgetExceededError, ProviderError, RequestTooLongError
from nanobot.messages.types import INTERRUPTED, ChatMessage, Origin, Provenance, ToolFailure, least_trusted, text_of
from nanobot.providers.base import (
    Finished,
    LLMProvider,
    LLMResponse,
    ToolCallRequest,
    call_context,
    calling_for,
)
from nanobot.providers.errors import ContextOverflowError, StreamCutError
from nanobot.security.vault import masked
from nanobot.usage.types import add_tokens
from nanobot.utils.aio import finish
from nanobot.utils.clock import timestamp
from nanobot.utils.text import counted

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


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How far a run may go. Tokens are the model's, messages are rows of the history."""

    max_steps: int = 40
    max_tokens: int = 8192
    temperature: float = 0.1
    window_tokens: int = 65_536
    window_messages: int = MOST_ROWS
    max_result_chars: int = 16_000


@dataclass(frozen=True, slots=True)
class Model:
    """A model ready to be asked."""

    provider: LLMProvider
    provider_name: str
    name: str
    reason: str = ""
    """Why it was chosen, in a few words."""
    limits: RunLimits = RunLimits()


@dataclass(frozen=True, slots=True)
class RunSpec:
    """All a run needs. `history` ends with the row to be answered and holds no system row."""

    model: Model
    system: str
    history: list[ChatMessage]
    tools: ToolRegistry
    context: ToolContext
    emit: Emitter
    record: Record
    partial: Callable[[str], None] = field(default=lambda text: None)
    """Told of the text of the running step as it streams, so that a crash loses none of it."""
    calls_start: CallsStart = nobody_asks
    """Told of calls before they begin to run."""
    joining: "Joining" = field(default_factory=lambda: _nobody_joins)
    """Asked at each tool boundary for what the person has said meanwhile: user rows, kept already."""
    cut: Cut | None = None
    """Set where `history` is that of a run that was cut off and is taken up here."""
    window: Window = field(default_factory=Window)
    """What is left of the history."""
    keep_window: Callable[[Window], None] = field(default=lambda window: None)
    """Told of each change of it."""
    remembered: Remembered = field(default_factory=Remembered)
    """What earlier runs of the session found out about its rows."""
    hooks: Sequence[ToolHook] = ()
    """Asked about each tool call before it begins."""


Joining = Callable[[], Awaitable[list[ChatMessage]]]


async def _nobody_joins() -> list[ChatMessage]:
    return []


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended: ANSWERED, or PARTIAL where a limit ended it."""

    outcome: TurnOutcome
    text: str
    usage: dict[str, int]
    steps: int
    cost_usd: float | None = None
    error: str | None = None
    """What ended it early, where that was an error."""


async def run(spec: RunSpec) -> RunResult:
    """Run until an answer or a limit.

    Raises ProviderError when a model fails, RequestTooLongError where none could read what is asked, StorageError when
    a row cannot be kept, BudgetExceededError where not even the first call may be paid for; what was said is recorded.
    Cancelling is safe at any point: tools are stopped, text that was shown is recorded, events stay in pairs.
    """
    return await _Run(spec).run()


class _Run:
    """The rows so far, and what they cost."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._rows = list(spec.history)
        self._schemas = spec.tools.get_definitions()
        self._requests = Requests(_room(spec), spec.window, spec.keep_window, spec.remembered)
        self._trust = least_trusted(stored_provenance(row, spec.context.session_key) for row in self._rows)
        self._entered = least_trusted(_entered_rows(self._rows, spec.context.turn_id))
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
        if open_calls(self._rows):
            await self._step_of_before(cut)
            await self._tell_model(_TAKEN_UP)
            await self._join()
        elif parts := parts_of_answer(self._rows, self._spec.context.turn_id):
            self._said += parts
            self._spec.emit(events.Notice(text="nanobot was interrupted in the middle of its answer and goes on."))
            if self._rows[-1]["role"] == "assistant":  # else it was told already, or a person goes on
                await self._tell_model(BROKEN_OFF)

    async def _step_of_before(self, cut: Cut) -> None:
        """End the step whose calls were cut off: what only reads or never began runs now, the rest is unknown."""
        spec, step = self._spec, self._steps
        self._steps += 1
        spec.emit(events.StepStarted(step=step))
        try:
            bench = self._bench()
            calls, finished = open_calls(self._rows), len(results_at_end(self._rows))
            began = {call.id for call in calls if cut.started is None or call.id in cut.started}
            unknown = [call for call in calls if call.id in began and bench.effect_of(call) is not Effect.READ]
            again = [call for call in calls if call not in unknown]
            spec.emit(events.Notice(text=account_of_cut(finished, again, unknown)))
            for call in unknown:
                self._rows.append(await outcome_unknown(call, bench))
            self._take_in(await run_calls(again, bench))
        finally:
            spec.emit(events.StepEnded(step=step, finish_reason=TAKEN_UP, usage={}))

    async def _until_answer(self) -> RunResult:
        said, nudged, continued, broken = self._said, False, 0, 0
        while self._steps < self._spec.model.limits.max_steps:
            try:
                response = await self._step()
            except BudgetExceededError as error:
                if self._steps == 1:
                    raise  # nothing was done yet: the message is refused
                return await self._give_up(str(error), type(error).__name__)
            except StreamCutError:  # quick, and mostly the line's fault; a silence has cost its minute already
                if not is_broken_off(self._rows[-1]) or broken == MOST_BROKEN_OFF:
                    raise
                broken += 1
                said.append(text_of(self._rows[-1]["content"]))
                self._spec.emit(events.Notice(text="The answer broke off; asking for the rest of it."))
                await self._tell_model(BROKEN_OFF)
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
                await self._tell_model(GO_ON)
            elif text.strip() or said:
                answer = "".join([*said, text])
                remark = await self._doubt(answer)
                if remark is None:
                    continue
                cut = response.finish_reason == "length"
                return self._result(TurnOutcome.PARTIAL if cut else TurnOutcome.ANSWERED, f"{answer}\n\n{remark}")
            elif not nudged:
                nudged = True
                await self._tell_model(_SAY_SOMETHING)
            else:
                return await self._give_up("The model gave no answer, twice.")
        return await self._out_of_steps("".join(said))

    async def _doubt(self, answer: str) -> str | None:
        """What is to be said behind an answer: nothing, or that what it claims was not done.

        None where the model was asked to do what it claims, or to take it back: once in a run.
        """
        if self._spec.context.hears_report:
            return ""  # what was done, the subagent did
        from nanobot.agent.run.claims.judge import (
            claim_in,
            nothing_was_done,
            one_more_step,
        )  # patterns; not before a request

        tools = self._spec.tools.names
        claim, called = claim_in(answer, self._rows, self._spec.context.turn_id, tools)
        if claim is None:
            return ""
        if self._doubted:
            return nothing_was_done(answer, called)
        self._doubted = True
        self._said.clear()
        self._spec.emit(events.Notice(text=_DOUBTED))
        await self._tell_model(one_more_step(claim, tools))
        return None

    async def _out_of_steps(self, said: str) -> RunResult:
        """One last word without tools; what the model then says is its account, the line behind it is ours."""
        steps = self._steps
        limit = f"Stopped at the limit of {steps} steps; the task may be unfinished."
        if said:
            return self._result(TurnOutcome.PARTIAL, f"{said}\n\n({limit})")
        await self._tell_model(_STEPS_USED_UP.format(steps=steps))
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
                if not self._requests.overflowed(self._rows, error.window_tokens):
                    raise
                spec.emit(events.Notice(text="That was too long for the model; asking again with less of what is old."))
                response = await self._ask()
            usage, cost, reason = response.usage, response.cost_usd, response.finish_reason
            self._add_up(usage, cost)
            calls = _distinct(response) if may_call else []
            response = replace(response, tool_calls=calls)
            if calls or response.content:
                await self._keep(self._assistant_row(response))
            if calls:
                self._take_in(await run_calls(calls, self._bench()))
            return response
        finally:
            spec.emit(events.StepEnded(step=step, finish_reason=reason, usage=usage, cost_usd=cost))

    def _bench(self) -> ToolBench:
        spec = self._spec
        context = replace(spec.context, provenance=self._trust, entered=self._entered)
        return ToolBench(
            tools=spec.tools,
            context=context,
            emit=spec.emit,
            record=spec.record,
            max_result_chars=spec.model.limits.max_result_chars,
            guard=self._guard,
            calls_start=spec.calls_start,
            shown=self._requests.shown,
            hooks=spec.hooks,
            rows=self._rows,
            entered=self._enters,
        )

    def _enters(self, provenance: Provenance) -> None:
        self._entered = least_trusted([self._entered, provenance])

    def _take_in(self, rows: list[ChatMessage]) -> None:
        """These rows are kept: they are part of the history, and what they say is trusted as little as they are."""
        self._rows += rows
        self._trust = least_trusted([self._trust, *(row["provenance"] for row in rows)])

    async def _join(self) -> None:
        """A tool boundary: what the person has said meanwhile is read with the next request."""
        joined = await self._spec.joining()
        self._take_in(joined)
        self._enters(least_trusted(row["provenance"] for row in joined))
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
        request = await self._requests.build(self._rows)
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
        except BaseException:
            await self._keep_broken_off(speech)
            raise
        if response is None:
            raise StreamCutError(f"{type(spec.model.provider).__name__} ended its answer without finishing it")
        self._requests.answered(response.usage.get("prompt_tokens", 0))
        return response

    async def _keep_broken_off(self, speech: Speech) -> None:
        speech.end(final=False)
        if speech.text.strip():
            row = self._assistant_row(LLMResponse(speech.text))
            row["error"] = INTERRUPTED
            await finish(self._keep(row))

    async def _keep(self, row: ChatMessage) -> None:
        await self._spec.record(row)
        self._rows.append(row)

    async def _tell_model(self, text: str) -> None:
        """A word of ours to the model: replayed, never shown to a person."""
        row = self._stamped({"role": "user", "content": text})
        row["origin"] = Origin.SYSTEM
        row["provenance"] = Provenance.SYSTEM
        await self._keep(row)

    def _assistant_row(self, response: LLMResponse) -> ChatMessage:
        row = self._stamped({"role": "assistant", "content": response.content or None})
        if response.tool_calls:
            row["tool_calls"] = [call.to_message() for call in response.tool_calls]
        if response.reasoning_content:
            row["reasoning_content"] = response.reasoning_content
        if response.thinking_blocks:
            row["thinking_blocks"] = response.thinking_blocks
        row["provenance"] = self._trust
        return row

    def _stamped(self, row: ChatMessage) -> ChatMessage:
        context = self._spec.context
        row["timestamp"] = timestamp(context.clock)
        row["turn_id"] = context.turn_id
        return row

    async def _give_up(self, why: str, error: str | None = None) -> RunResult:
        """End here, with what was done by code's own count, since the model does not say it."""
        text = self._account(why)
        row = self._stamped({"role": "assistant", "content": text, "error": TurnOutcome.PARTIAL.value})
        row["provenance"] = Provenance.SYSTEM
        await self._keep(row)
        return replace(self._result(TurnOutcome.PARTIAL, text), error=error)

    def _account(self, why: str) -> str:
        turn_id = self._spec.context.turn_id
        answered = [row for row in self._rows if row.get("turn_id") == turn_id and row["role"] == "tool"]
        mine = [row for row in answered if row.get("failure") != ToolFailure.NOT_RUN]
        times = Counter(str(row.get("name")) for row in mine)
        done = ", ".join(f"{name} {count} times" if count > 1 else name for name, count in times.items())
        failed = [row for row in mine if row.get("failure", ToolFailure.UNKNOWN) != ToolFailure.UNKNOWN]
        parts = [why, f"{counted(len(mine), 'tool call')} ran ({done})." if mine else "No tool ran."]
        if failed:
            parts.append(f"{len(failed)} of them failed, the last with: {text_of(failed[-1]['content'])[:200]}")
        return " ".join([*parts, f"Ask again, or say how to go on. (turn {turn_id})"])

    def _result(self, outcome: TurnOutcome, text: str) -> RunResult:
        return RunResult(outcome, masked(text.strip()), dict(self._usage), self._steps, self._cost_usd)


def _entered_rows(rows: Sequence[ChatMessage], turn_id: str) -> list[str]:
    """Where the words came from that this turn was given: what was asked, and what tools brought before a crash. One
    that begins by ending a turn that was cut off was given what that one was.
    """
    last = rows[-1:]
    names = (turn_id, *(row["turn_id"] for row in last if row.get("turn_id")))
    given = ([row for row in rows if row.get("turn_id") == name and row["role"] != "assistant"] for name in names)
    mine = next((found for found in given if found), last)
    return [row.get("own_provenance", row.get("provenance", Provenance.TOOL)) for row in mine]


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
