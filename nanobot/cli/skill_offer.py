"""A skill that may be installed, as a person reads it before they say yes, and as programs do."""

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from nanobot.agent.skill.needs import Lack
from nanobot.cli.common import one_line
from nanobot.utils.text import counted, human_size

if TYPE_CHECKING:
    from nanobot.agent.skill.installing import Offer

_MOST = 12
_LABEL = 13


def told_offer(offer: "Offer", missing: Collection[Lack], *, is_ours: bool) -> Iterator[str]:
    """Line by line: what it is, what it asks for, what it brings, what to look at.

    `is_ours`: a built-in one has its name.
    """
    bundle, needs = offer.bundle, offer.needs
    yield f"{offer.name}: {one_line(offer.manual.description) or '(it does not say what it is for)'}"
    size = f"{counted(len(bundle.files), 'file')}, {human_size(bundle.size)}"
    if is_ours:
        yield _row("instead of", f"the built-in skill {offer.name}, which the agent sees no more")
    if offer.manual.always:
        yield _row("always on", "its text is in every prompt")
    yield _row("from", f"{one_line(str(bundle.source))} ({size})")
    rows = {
        "license": [offer.license],
        "meant for": [one_line(offer.manual.front.get("compatibility") or "")],
        "tools": [", ".join(needs.tools) + " (what it says it uses; nothing is granted by it)"] if needs.tools else [],
        "programs": [*map(_program, (*needs.programs, *needs.any_of))],
        "variables": [*map(_variable, dict.fromkeys((*needs.variables, needs.primary)))],
        "settings": needs.settings,
        "skills": needs.skills,
        "systems": needs.systems,
        "network": offer.addresses,
        "brings": [f"{path} ({human_size(len(data))})" for path, data in offer.programs.items()],
    }
    for label, words in rows.items():
        if told := [one_line(word) for word in words if word]:
            yield _row(label, _listed(told))
    for lack in missing:
        yield _row("missing", one_line(lack.told))
    for warned in offer.warned:
        yield _row("LOOK" if warned.grave else "look at", one_line(warned.told))
    for fault in offer.faults:
        yield _row("error" if fault.is_error else "warning", one_line(fault.told))


def offer_facts(offer: "Offer", missing: Collection[Lack], *, is_ours: bool) -> dict[str, object]:
    """The same for programs."""
    needs = offer.needs
    return {
        "name": offer.name,
        "description": offer.manual.description,
        "source": str(offer.bundle.source),
        "license": offer.license,
        "always": offer.manual.always,
        "instead_of_builtin": is_ours,
        "files": {file.path: len(file.data) for file in offer.bundle.files},
        "size": offer.bundle.size,
        "asks": {
            "tools": needs.tools,
            "programs": [*needs.programs, *needs.any_of],
            "variables": [name for name in dict.fromkeys((*needs.variables, needs.primary)) if name],
            "settings": needs.settings,
            "skills": needs.skills,
            "systems": needs.systems,
            "network": offer.addresses,
        },
        "programs": list(offer.programs),
        "missing": [lack.told for lack in missing],
        "warnings": [
            {"file": one.path, "line": one.line, "text": one.text, "grave": one.grave} for one in offer.warned
        ],
        "faults": [fault.told for fault in offer.faults],
    }


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"


def _listed(words: Iterable[str]) -> str:
    words = list(words)
    rest = len(words) - _MOST
    return ", ".join(words[:_MOST]) + (f" and {rest} more" if rest > 0 else "")


def _program(name: str) -> str:
    return name if shutil.which(name) else f"{name} (not here)"


def _variable(name: str) -> str:
    return name if not name or os.environ.get(name) else f"{name} (not set)"
