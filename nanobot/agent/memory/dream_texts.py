"""What Dream did, as text for people."""

from collections.abc import Iterator

from nanobot.agent.memory.dream import DreamOutcome, DreamRun
from nanobot.agent.memory.revisions import AppliedEdit, DreamPass, PassOutcome, RevisionLog
from nanobot.usage.types import format_dollars
from nanobot.utils.text import clip_line, count_noun

_SHOWN_CHARS = 160
_MAX_LINES = 40


def format_run(run: DreamRun, last: DreamPass | None, command: str = "/dream") -> str:
    """Format a run. `last` is the newest pass on record, `command` how the user calls Dream."""
    if run.outcome is DreamOutcome.BUSY:
        return f"Dream is already running on this memory. {command}-log shows the result."
    if run.outcome is DreamOutcome.NOTHING:
        when = f" since {_minute(last.at)}" if last is not None else ""
        return run.reason or f"Nothing new{when} that could change this memory; no model was called."
    lines = [line for dream_pass in run.passes for line in format_pass(dream_pass)]
    lines += [run.reason] if run.reason and (run.outcome is DreamOutcome.DONE or not run.passes) else []
    if any(dream_pass.outcome is PassOutcome.CHANGED for dream_pass in run.passes):
        lines.append(f"{command}-restore undoes it.")
    return "\n".join(lines)


def format_pass(dream_pass: DreamPass, *, restored: bool = False) -> Iterator[str]:
    """Yield the lines of a pass and its diff."""
    note = " (restored)" if restored else ""
    yield f"Pass {dream_pass.number}, {_minute(dream_pass.at)}: {_summary(dream_pass)}{note}"
    if dream_pass.calls:
        yield (
            f"  {dream_pass.model}: {count_noun(dream_pass.calls, 'call')}, {dream_pass.prompt_tokens:,} tokens in, "
            f"{dream_pass.completion_tokens:,} out, {format_dollars(dream_pass.usd)}; "
            f"{count_noun(dream_pass.entries, 'new entry', 'new entries')}"
        )
    lines = [line for edit in dream_pass.edits for line in _diff(edit)] + [f"  ! {why}" for why in dream_pass.refused]
    yield from (clip_line(line, _SHOWN_CHARS) for line in lines[:_MAX_LINES])
    if len(lines) > _MAX_LINES:
        yield f"  and {len(lines) - _MAX_LINES} more lines"


def format_log(revisions: RevisionLog, limit: int) -> str:
    """Format the last passes, newest first; empty if there are none."""
    active = revisions.active_passes()
    return "\n".join(
        line
        for dream_pass in revisions.passes()[:limit]
        for line in format_pass(
            dream_pass, restored=dream_pass.outcome is PassOutcome.CHANGED and dream_pass.number not in active
        )
    )


def _summary(dream_pass: DreamPass) -> str:
    match dream_pass.outcome:
        case PassOutcome.CHANGED:
            size = f"{dream_pass.bytes_before:,} to {dream_pass.bytes_after:,} bytes"
            return f"{count_noun(len(dream_pass.edits), 'change')}, {size}"
        case PassOutcome.UNCHANGED:
            return "nothing to change"
        case PassOutcome.FAILED:
            return f"failed, nothing changed: {dream_pass.reason}"


def _diff(edit: AppliedEdit) -> Iterator[str]:
    why = f"  ({edit.why})" if edit.why else ""
    if edit.action == "move":
        yield f"  > {edit.before[0]}  (now under {edit.after})"
        return
    note = "  (to ARCHIVE.md)" if edit.action == "archive" else ""
    yield from (f"  - {text}{note}{why}" for text in edit.before)
    if edit.after:
        yield f"  + {edit.after}"


def _minute(timestamp: str) -> str:
    return timestamp[:16].replace("T", " ")
