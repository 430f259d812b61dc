"""What is said of goals: to the model in the turns that work at them and beside a person's message, and to people."""

from collections.abc import Sequence

from nanobot.agent.goals.goal import Goal, GoalState
from nanobot.messages.shown import GOAL_CHECK, GOAL_RULES
from nanobot.usage.types import dollars
from nanobot.utils.text import clip_line, counted

HEADING = "## Goal"
SOON_UNNOTED = 3
"""Turns after which the model is told that its note stands still."""

_RULES = f"""\
{GOAL_RULES} nobody waits for your words, and what you say on the way is not sent. Do
the next thing with your tools. Keep the note true with `goal` (note: done, doing, next): it is what you will know of
this later. When it is reached, call `goal` (finish) with a check that proves it; your answer behind that is what the
person is told. What only the person can say, ask with `goal` (ask). What cannot be reached, `goal` (drop) with why."""
_GO_ON = "Go on with what comes next."
_NOTHING_DONE = (
    "In your last turn you did nothing. Do the next thing now, ask the person (ask), claim the end with a check "
    "(finish), or say why it cannot be done (drop)."
)
_NOTE_IT = "Your note has not changed for {turns} turns. Bring it up to date, then go on with what comes next."
_SENT_BACK = "A reviewer has read your result and sent it back. Mend what they object to, then claim the end again."
_STATES = {
    GoalState.ACTIVE: "at work",
    GoalState.ASKING: "waits for your answer",
    GoalState.WAITING: "waits",
    GoalState.DONE: "done",
    GoalState.DROPPED: "given up",
    GoalState.STOPPED: "stopped",
    GoalState.LIMIT: "ended at its limit",
}


def title(goal: Goal) -> str:
    """The goal in one short line."""
    return clip_line(" ".join(goal.text.split()), 60)


def used(goal: Goal) -> str:
    """What it has used, and may."""
    limits = goal.limits
    if goal.steps and goal.cost_usd is None:
        return f"step {goal.steps} of {limits.steps}, its price not known"
    return f"step {goal.steps} of {limits.steps}, {dollars(goal.cost_usd or 0.0)} of {dollars(limits.usd)}"


def turn(goal: Goal) -> str:
    """The message of its next turn."""
    parts = [f"[Goal, turn {goal.turns + 1}: {used(goal)}]", goal.text]
    if goal.check is not None:
        parts.append(f"{GOAL_CHECK} {goal.check}")
    if goal.turns == 0:
        parts.append(_RULES)
    elif goal.objections:
        parts.append(_SENT_BACK)
    else:
        unnoted = _NOTE_IT.format(turns=goal.unnoted) if goal.unnoted >= SOON_UNNOTED else ""
        parts.append(_NOTHING_DONE if goal.idle else unnoted or _GO_ON)
    return "\n\n".join(parts)


def noted(goal: Goal) -> str:
    """What the message of its turn is told with: it may hold words from anywhere, so it stands beside the message."""
    note = _noted(goal)
    objections = f"The reviewer objects: {goal.objections}" if goal.objections else ""
    return "\n".join(filter(None, [HEADING, "", note, objections])) if note or objections else ""


def beside(goal: Goal) -> str:
    """What a message of the person is told with, while the goal is open."""
    lines = [
        HEADING,
        "",
        goal.text,
        f"(You work at this between the person's messages; it {_is(goal).replace('your', 'their')}. "
        "This message comes between: answer it. `goal` changes the note, ends or drops it.)",
    ]
    if goal.state is GoalState.ASKING:
        lines.append(f"You had asked: {goal.why}")
    if note := _noted(goal):
        lines.append(note)
    return "\n".join(lines)


def _noted(goal: Goal) -> str:
    note = {"Done": goal.note.done, "Doing": goal.note.doing, "Next": goal.note.following}
    return "\n".join(f"{name}: {text}" for name, text in note.items() if text)


def begun(goal: Goal) -> str:
    """For who set it."""
    limits = goal.limits
    how = f"at most {limits.steps} steps and {dollars(limits.usd)}"
    proof = f" It is reached when this holds: {goal.check}." if goal.check is not None else ""
    return (
        f"I work at this until it is reached ({how}), and tell you then.{proof} "
        "/goal shows how far it is, /stop ends it."
    )


def begun_by_agent(goal: Goal) -> str:
    """For the model that began it."""
    return (
        f"The goal stands; it is worked at in turns of its own, which begin when this one ends ({used(goal)}). Tell "
        "the person so in a sentence, and end this turn now."
    )


def status(goal: Goal, now: float) -> str:
    """For a person who asks."""
    why = f": {goal.why}" if goal.why else ""
    lines = [
        f"Goal: {goal.text}",
        f"It {_is(goal)}{why}. {counted(goal.turns, 'turn')}, {used(goal)}, {_age(now - goal.created_at)} old.",
    ]
    if goal.check is not None:
        lines.append(f"Must hold: {goal.check}")
    if goal.claim is not None:
        lines.append(f"Proved by: {goal.claim}")
    if note := _noted(goal):
        lines.append(note)
    if goal.state is GoalState.ACTIVE:
        lines.append("/stop ends it.")
    elif goal.state is GoalState.ASKING:
        lines.append("Your answer goes on with it; /stop ends it.")
    elif not goal.state.is_over:
        lines.append("/goal resume goes on with it; /stop ends it.")
    elif goal.state is not GoalState.DONE:
        lines.append("/goal resume goes on with it; /goal TEXT begins another.")
    return "\n".join(lines)


def line(goal: Goal) -> str:
    """For `/status`."""
    why = f": {goal.why}" if goal.why else ""
    return f"Goal: {title(goal)} ({_STATES[goal.state]}{why}; {used(goal)})"


def _is(goal: Goal) -> str:
    said = _STATES[goal.state]
    return said if said.startswith("waits") else f"is {said}" if goal.state is not GoalState.LIMIT else said


def listed(steps: Sequence[str]) -> str:
    """A plan, as a note keeps it."""
    return "\n" + "\n".join(f"- [ ] {step}" for step in steps)


def done(goal: Goal, said: str) -> str:
    """The report of one that was reached."""
    proof = f"(Goal reached, checked by {goal.claim}; {used(goal)}.)"
    if goal.objections:
        proof += f"\n(A reviewer was not content: {goal.objections})"
    return f"{said.strip() or title(goal)}\n\n{proof}"


def asks(question: str) -> str:
    """The question of one that waits for an answer."""
    return f"{question.strip()}\n\n(I go on with the goal when you have answered.)"


def ended(goal: Goal, said: str = "") -> str:
    """The report of one that ended early or cannot go on by itself."""
    words = {
        GoalState.STOPPED: "This goal is stopped",
        GoalState.DROPPED: "I give up this goal",
        GoalState.LIMIT: "I stop here with this goal",
        GoalState.WAITING: "I cannot go on with this goal by myself",
    }[goal.state]
    parts = [f"{words} ({title(goal)}): {goal.why}."]
    if said.strip():
        parts.append(said.strip())
    elif note := _noted(goal):
        parts.append(note)
    if goal.state is not GoalState.DROPPED:
        more = " (with --steps N or --usd N for more)" if goal.state is GoalState.LIMIT else ""
        parts.append(f"/goal resume goes on with it{more}.")
    return "\n\n".join(parts)


def _age(seconds: float) -> str:
    minutes = int(seconds) // 60
    if minutes < 1:
        return f"{max(int(seconds), 0)} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
