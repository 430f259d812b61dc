"""What people are told of Dream: what a run did, what the last passes were, what was taken back."""

from collections.abc import Iterator, Sequence

from nanobot.agent.dream import DreamOutcome, DreamRun
from nanobot.agent.dream_log import DreamState, EditDone, Pass, PassOutcome
from nanobot.usage.types import dollars
from nanobot.utils.text import clip_line, counted

_SHOWN = 160
_MOST_LINES = 40


def told_run(run: DreamRun, last: Pass | None, command: str = "/dream") -> str:
    """What a run came to. `last` is the newest pass there is, `command` how the person speaks of Dream."""
    if run.outcome is DreamOutcome.BUSY:
        return f"A pass over this memory is under way already. {command}-log shows what comes of it."
    if run.outcome is DreamOutcome.NOTHING:
        when = f" since {_minute(last.at)}" if last is not None else ""
        return run.reason or f"Nothing new was said that could change this memory{when}; no model was asked."
    lines = [line for one in run.passes for line in told_pass(one)]
    lines += [run.reason] if run.reason and (run.outcome is DreamOutcome.DONE or not run.passes) else []
    if any(one.outcome is PassOutcome.CHANGED for one in run.passes):
        lines.append(f"{command}-restore takes it back.")
    return "\n".join(lines)


def told_pass(one: Pass, *, taken_back: bool = False) -> Iterator[str]:
    """A pass and its diff, a line each."""
    back = " (taken back)" if taken_back else ""
    yield f"Pass {one.number}, {_minute(one.at)}: {_came_to(one)}{back}"
    if one.calls:
        yield (
            f"  {one.model}: {counted(one.calls, 'call')}, {one.prompt_tokens:,} tokens in, "
            f"{one.completion_tokens:,} out, {dollars(one.usd)}; {counted(one.entries, 'new entry', 'new entries')}"
        )
    lines = [line for edit in one.edits for line in _diff(edit)] + [f"  ! {why}" for why in one.refused]
    yield from (clip_line(line, _SHOWN) for line in lines[:_MOST_LINES])
    if len(lines) > _MOST_LINES:
        yield f"  and {len(lines) - _MOST_LINES} lines more"


def told_log(passes: Sequence[Pass], standing: Sequence[Pass]) -> str:
    """The last passes, the newest first."""
    stand = {one.number for one in standing}
    return "\n".join(
        line
        for one in passes
        for line in told_pass(one, taken_back=one.outcome is PassOutcome.CHANGED and one.number not in stand)
    )


def told_state(state: DreamState) -> str | None:
    """How it goes, where something is wrong."""
    if not state.failures:
        return None
    return f"Dream: failed {counted(state.failures, 'time')} in a row, the memory is as it was: {state.error}"


def _came_to(one: Pass) -> str:
    match one.outcome:
        case PassOutcome.CHANGED:
            size = f"{one.bytes_before:,} to {one.bytes_after:,} bytes"
            return f"{counted(len(one.edits), 'change')}, {size}"
        case PassOutcome.UNCHANGED:
            return "nothing to change"
        case PassOutcome.FAILED:
            return f"failed, nothing was changed: {one.reason}"
        case PassOutcome.BROKEN_OFF:
            return "broken off before anything was changed"


def _diff(edit: EditDone) -> Iterator[str]:
    why = f"  ({edit.why})" if edit.why else ""
    if edit.action == "move":
        yield f"  > {edit.before[0]}  (now under {edit.after})"
        return
    note = "  (to ARCHIVE.md)" if edit.action == "archive" else ""
    yield from (f"  - {text}{note}{why}" for text in edit.before)
    if edit.after:
        yield f"  + {edit.after}"


def _minute(told: str) -> str:
    return told[:16].replace("T", " ")
