"""Texts about goals: for the model in goal turns and beside a person's message, and for people."""

from collections.abc import Sequence

from nanobot.agent.goals.goal import Goal, GoalState
from nanobot.messages.shown import GOAL_CHECK, GOAL_RULES
from nanobot.usage.types import format_dollars
from nanobot.utils.text import clip_line, count_noun, duration

HEADING = "## Goal"
REMIND_OF_NOTE_AFTER = 3
"""Turns without a change of the note after which the model is reminded of it."""

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
_STATES = {
    GoalState.ACTIVE: "running",
    GoalState.ASKING: "waits for your answer",
    GoalState.WAITING: "waits",
    GoalState.DONE: "done",
    GoalState.DROPPED: "given up",
    GoalState.STOPPED: "stopped",
    GoalState.LIMIT: "ended at its limit",
}


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
    else:
        unnoted = (
            _UPDATE_NOTE.format(turns=goal.progress.unnoted) if goal.progress.unnoted >= REMIND_OF_NOTE_AFTER else ""
        )
        parts.append(_WAS_IDLE if goal.progress.idle else unnoted or _CONTINUE)
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
    lines = [
        HEADING,
        "",
        goal.order.text,
        f"(You work on this between the person's messages; it {_state_clause(goal).replace('your', 'their')}. "
        "Answer this message first. `goal` updates the note, finishes or drops the goal.)",
    ]
    if goal.state is GoalState.ASKING:
        lines.append(f"You asked: {goal.why}")
    if note := _format_note(goal):
        lines.append(note)
    return "\n".join(lines)


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
    why = f": {goal.why}" if goal.why else ""
    lines = [
        f"Goal: {goal.order.text}",
        f"It {_state_clause(goal)}{why}. {count_noun(goal.usage.turns, 'turn')}, {format_usage(goal)}, "
        f"{duration(now - goal.created_at)} old.",
    ]
    if goal.order.check is not None:
        lines.append(f"Check: {goal.order.check}")
    if goal.progress.claim is not None:
        lines.append(f"Proved by: {goal.progress.claim}")
    if note := _format_note(goal):
        lines.append(note)
    if goal.state is GoalState.ACTIVE:
        lines.append("/stop ends it.")
    elif goal.state is GoalState.ASKING:
        lines.append("Your answer continues it; /stop ends it.")
    elif not goal.state.is_over:
        lines.append("/goal resume continues it; /stop ends it.")
    elif goal.state is not GoalState.DONE:
        lines.append("/goal resume continues it; /goal TEXT starts another.")
    return "\n".join(lines)


def status_line(goal: Goal) -> str:
    """Return the goal's line in `/status`."""
    why = f": {goal.why}" if goal.why else ""
    return f"Goal: {title(goal)} ({_STATES[goal.state]}{why}; {format_usage(goal)})"


def _state_clause(goal: Goal) -> str:
    text = _STATES[goal.state]
    return text if text.startswith("waits") else f"is {text}" if goal.state is not GoalState.LIMIT else text


def format_plan(steps: Sequence[str]) -> str:
    """Format a plan as the note's next steps."""
    return "\n" + "\n".join(f"- [ ] {step}" for step in steps)


def done_report(goal: Goal, text: str) -> str:
    """Return the report of a reached goal."""
    proof = f"(Goal reached, checked by {goal.progress.claim}; {format_usage(goal)}.)"
    if goal.progress.objections:
        proof += f"\n(The reviewer still objects: {goal.progress.objections})"
    return f"{text.strip() or title(goal)}\n\n{proof}"


def question_message(question: str) -> str:
    """Return the message that asks the person a question."""
    return f"{question.strip()}\n\n(I will continue with the goal after your answer.)"


def end_report(goal: Goal, text: str = "") -> str:
    """Return the report of a goal that ended early or cannot continue by itself."""
    headline = {
        GoalState.STOPPED: "This goal was stopped",
        GoalState.DROPPED: "I gave up this goal",
        GoalState.LIMIT: "I stopped working on this goal",
        GoalState.WAITING: "I cannot continue this goal by myself",
    }[goal.state]
    parts = [f"{headline} ({title(goal)}): {goal.why}."]
    if text.strip():
        parts.append(text.strip())
    elif note := _format_note(goal):
        parts.append(note)
    if goal.state is not GoalState.DROPPED:
        more = " (with --steps N or --usd N for more)" if goal.state is GoalState.LIMIT else ""
        parts.append(f"/goal resume continues it{more}.")
    return "\n\n".join(parts)
