"""Texts about goals: for the model in goal turns and beside a person's message, and for people."""

import re

from nanobot.agent.goals.goal import Goal
from nanobot.agent.work import WorkState
from nanobot.messages.types import GOAL_CHECK, GOAL_RULES
from nanobot.usage.types import format_dollars
from nanobot.utils.text import clip_line, count_noun, duration, quote_lines

HEADING = "## Goal"
REMIND_OF_NOTE_AFTER = 3
"""Turns without a change of the note after which the model is reminded of it."""
_MAX_PLAN_STEPS = 20
_MAX_PLAN_STEP_CHARS = 300
_PLAN_STEP = re.compile(r"^[^\S\n]*(?:[-*+]|\d+[.)])[^\S\n]+\[ ?\][^\S\n]+(\S.*)$", re.MULTILINE)

_RULES = f"""\
{GOAL_RULES} nobody waits for your reply, and your text is not sent. Take the next step
with your tools. Keep the note up to date with `goal` (note: done, doing, next): it is all you will remember of this
later. When the goal is reached, call `goal` (finish) with a check that proves it; your answer after that is sent to the
person. Ask what only the person can answer with `goal` (ask). If it cannot be reached, call `goal` (drop) with the
reason."""
_CONTINUE = "Continue with the next step."
_WAS_IDLE = (
    "You did nothing in your last turn. Take the next step now, ask the person (ask), finish with a check (finish), "
    "or say why it cannot be done (drop)."
)
_UPDATE_NOTE = "Your note has not changed for {turns} turns. Update it, then continue with the next step."
_REJECTED = "A reviewer rejected your result. Fix what they object to, then finish again."
ADOPTED = "it was started by an earlier release"
_RESUME_OR_NEW = "/goal resume continues it; /goal TEXT starts another."
_STATES = {
    WorkState.ACTIVE: ("is running", "/stop ends it."),
    WorkState.ASKING: ("waits for your answer", "Your answer continues it; /stop ends it."),
    WorkState.WAITING: ("waits", "/goal resume continues it; /stop ends it."),
    WorkState.DONE: ("is done", ""),
    WorkState.DROPPED: ("is given up", _RESUME_OR_NEW),
    WorkState.STOPPED: ("is stopped", _RESUME_OR_NEW),
    WorkState.LIMIT: ("ended at its limit", _RESUME_OR_NEW),
}
"""What a goal does in each state, and what a person can do next."""


def title(goal: Goal) -> str:
    return clip_line(" ".join(goal.order.text.split()), 60)


def format_usage(goal: Goal) -> str:
    """Return what the goal has used of its limits."""
    limits, used = goal.limits, goal.usage
    if used.steps and used.cost_usd is None:
        return f"step {used.steps} of {limits.steps}, its cost is not known"
    return (
        f"step {used.steps} of {limits.steps}, {format_dollars(used.cost_usd or 0.0)} of {format_dollars(limits.usd)}"
    )


def turn_message(goal: Goal) -> str:
    """Return the message of the goal's next turn."""
    parts = [f"[Goal, turn {goal.usage.turns + 1}: {format_usage(goal)}]", goal.order.text]
    if goal.order.check is not None:
        parts.append(f"{GOAL_CHECK} {goal.order.check}")
    if goal.usage.turns == 0:
        parts.append(_RULES)
    elif goal.progress.objections:
        parts.append(_REJECTED)
    elif goal.progress.idle:
        parts.append(_WAS_IDLE)
    elif goal.progress.unnoted >= REMIND_OF_NOTE_AFTER:
        parts.append(_UPDATE_NOTE.format(turns=goal.progress.unnoted))
    else:
        parts.append(_CONTINUE)
    return "\n\n".join(parts)


def runtime_note(goal: Goal) -> str:
    """Return the note and objections for the runtime context of a goal's turn. They may hold untrusted content, so they
    are not part of the message.
    """
    note = _format_note(goal)
    objections = f"The reviewer objects: {goal.progress.objections}" if goal.progress.objections else ""
    return "\n".join(filter(None, [HEADING, "", note, objections])) if note or objections else ""


def runtime_context(goal: Goal) -> str:
    """Return the goal for the runtime context of a person's message."""
    state = _STATES[goal.state][0].replace("your", "their")
    lines = [
        f"{HEADING}\n\n{goal.order.text}",
        f"(You work on this between the person's messages; it {state}. "
        "Answer this message first. `goal` updates the note, finishes or drops the goal.)",
        f"You asked: {goal.why}" if goal.state is WorkState.ASKING else "",
        _format_note(goal),
    ]
    return "\n".join(filter(None, lines))


def _format_note(goal: Goal) -> str:
    note = goal.progress.note
    parts = {"Done": note.done, "Doing": note.doing, "Next": note.following}
    return "\n".join(f"{name}: {text}" for name, text in parts.items() if text)


def started_reply(goal: Goal) -> str:
    """Return the reply to the person who set the goal."""
    limits = goal.limits
    limits_text = f"at most {limits.steps} steps and {format_dollars(limits.usd)}"
    proof = f" It is done when this check passes: {goal.order.check}." if goal.order.check is not None else ""
    return (
        f"I will work on this until it is done ({limits_text}) and tell you then.{proof} "
        "/goal shows the progress, /stop ends it."
    )


def adopted_notice(goal: Goal) -> str:
    """Return the notice that a goal of an earlier release was found."""
    return (
        f"An earlier release was working on a goal here: {title(goal)}. It is paused. /goal resume continues it, "
        "/goal stop ends it, /goal shows it."
    )


def started_tool_result(goal: Goal) -> str:
    """Return the tool result for the model that set the goal."""
    return (
        f"The goal is set. Its own turns start when this one ends ({format_usage(goal)}). Tell "
        "the person so in a sentence, and end this turn now."
    )


def status(goal: Goal, now: float) -> str:
    """Return the reply to `/goal`."""
    state, next_step = _STATES[goal.state]
    state = f"{state}: {goal.why}" if goal.why else state
    turns, age = count_noun(goal.usage.turns, "turn"), duration(now - goal.created_at)
    lines = [
        f"Goal: {goal.order.text}",
        f"It {state}. {turns}, {format_usage(goal)}, {age} old.",
        f"Check: {goal.order.check}" if goal.order.check is not None else "",
        f"Proved by: {goal.progress.claim}" if goal.progress.claim is not None else "",
        _format_note(goal),
        next_step,
    ]
    return "\n".join(filter(None, lines))


def status_line(goal: Goal) -> str:
    """Return the goal's line in `/status`."""
    state = _STATES[goal.state][0].removeprefix("is ")
    state = f"{state}: {goal.why}" if goal.why else state
    return f"Goal: {title(goal)} ({state}; {format_usage(goal)})"


def plan_prompt(goal: Goal) -> str:
    """Return the planner's task."""
    return f"Plan this:\n\n{quote_lines(goal.order.text)}"


def parse_plan(answer: str) -> str:
    """Return the planner's task list as the note's next steps; empty without one."""
    steps = [step.strip() for step in _PLAN_STEP.findall(answer)[:_MAX_PLAN_STEPS]]
    return "".join(f"\n- [ ] {clip_line(step, _MAX_PLAN_STEP_CHARS)}" for step in steps)


def review_prompt(goal: Goal, result: str) -> str:
    """Return the reviewer's task."""
    prompt = f"Review this. The request:\n\n{quote_lines(goal.order.text)}\n\nThe reported result:\n\n"
    check = f"\nThe check that passed:\n\n{quote_lines(str(goal.progress.claim))}\n" if goal.progress.claim else ""
    return f"{prompt}{quote_lines(result)}\n{check}"


def report(goal: Goal, text: str) -> str:
    """Return what is sent when the goal ends or waits. `text` is the last reply, unless it was sent."""
    text = text.strip()
    if goal.state is WorkState.ASKING:
        return f"{goal.why}\n\n(I will continue with the goal after your answer.)"
    if goal.state is WorkState.DONE:
        objections = goal.progress.objections
        more = f"\n(The reviewer still objects: {objections})" if objections else ""
        proof = f"(Goal reached, checked by {goal.progress.claim}; {format_usage(goal)}.)"
        return f"{text or title(goal)}\n\n{proof}{more}"
    headline = {
        WorkState.STOPPED: "This goal was stopped",
        WorkState.DROPPED: "I gave up this goal",
        WorkState.LIMIT: "I stopped working on this goal",
        WorkState.WAITING: "I cannot continue this goal by myself",
    }[goal.state]
    parts = [f"{headline} ({title(goal)}): {goal.why}.", text or _format_note(goal)]
    if goal.state is not WorkState.DROPPED:
        more = " (with --steps N or --usd N for more)" if goal.state is WorkState.LIMIT else ""
        parts.append(f"/goal resume continues it{more}.")
    return "\n\n".join(filter(None, parts))
