"""Where two texts differ: what a write changed, for a person's screen, and what an edit missed, for the model."""

import difflib
import time

from nanobot.agent.tools.textfile import numbered

_DIFF_LINES = 4_000
_DISPLAY_LINES = 200
_CLOSEST_PATIENCE_S = 0.5


def diff(before: str, after: str, path: str) -> str | None:
    """What changed, for a person's screen; None where that would take long."""
    old, new = before.splitlines(), after.splitlines()
    if len(old) + len(new) > _DIFF_LINES and old:
        return None
    name = path.removeprefix("/")
    lines = list(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", lineterm=""))
    if len(lines) > _DISPLAY_LINES:
        lines = [*lines[:_DISPLAY_LINES], f"... {len(lines) - _DISPLAY_LINES} more lines"]
    return "\n".join(lines)


def miss(path: str, text: str, old_text: str) -> str:
    """Why old_text was not found: what is closest to it, and where."""
    lines = text.splitlines()
    wanted = old_text.strip("\r\n").splitlines()
    found = _closest(lines, wanted)
    if found is None:
        return f"old_text is not in {path}, nor anything like it. Read the file and take the text from there."
    start, ratio = found
    there = lines[start : start + len(wanted)]
    why = " It differs in white space." if [x.split() for x in there] == [x.split() for x in wanted] else ""
    return (
        f"old_text is not in {path}. The closest text ({ratio:.0%} alike) begins at line {start + 1}.{why}\n"
        f"{numbered(there[:40], start + 1)}\nTake old_text from there, without the line numbers."
    )


def _closest(lines: list[str], wanted: list[str]) -> tuple[int, float] | None:
    """Where the lines look most like those wanted, and how much. Looks for half a second at most."""
    target = "\n".join(wanted)[:2_000]
    deadline = time.monotonic() + _CLOSEST_PATIENCE_S
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(target)
    best, best_ratio = None, 0.5
    for start in range(max(1, len(lines) - len(wanted) + 1)):
        matcher.set_seq1("\n".join(lines[start : start + len(wanted)])[:2_000])
        if matcher.real_quick_ratio() > best_ratio and matcher.quick_ratio() > best_ratio:
            ratio = matcher.ratio()
            if ratio > best_ratio:
                best, best_ratio = start, ratio
        if time.monotonic() > deadline:
            break
    return None if best is None else (best, best_ratio)
