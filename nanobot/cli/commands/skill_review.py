"""What `nanobot skills install` shows about a skill before it asks for confirmation."""

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from nanobot.agent.skills.needs import MissingNeed
from nanobot.cli.common import to_one_line
from nanobot.utils.text import count_noun, human_size

if TYPE_CHECKING:
    from nanobot.agent.skills.install import SkillOffer

_MAX_VALUES = 12
_LABEL = 13


def format_offer(offer: "SkillOffer", missing: Collection[MissingNeed], *, replaces_builtin: bool) -> Iterator[str]:
    """Lines about a skill: what it is for, what it requires and contains, and warnings.

    `replaces_builtin`: a built-in skill has the same name.
    """
    bundle, needs = offer.bundle, offer.needs
    yield f"{offer.name}: {to_one_line(offer.manual.description) or '(no description)'}"
    size = f"{count_noun(len(bundle.files), 'file')}, {human_size(bundle.size)}"
    if replaces_builtin:
        yield _row("replaces", f"the built-in skill {offer.name}, which the agent no longer sees")
    if offer.manual.always:
        yield _row("always on", "its text is in every prompt")
    yield _row("from", f"{to_one_line(str(bundle.source))} ({size})")
    rows = {
        "license": [offer.license],
        "meant for": [to_one_line(offer.manual.front.get("compatibility") or "")],
        "tools": [", ".join(needs.tools) + " (as declared; installing grants nothing)"] if needs.tools else [],
        "programs": [*map(_format_program, (*needs.programs, *needs.any_of))],
        "variables": [*map(_format_variable, dict.fromkeys((*needs.variables, needs.primary)))],
        "settings": needs.settings,
        "skills": needs.skills,
        "systems": needs.systems,
        "network": offer.addresses,
        "brings": [f"{path} ({human_size(len(data))})" for path, data in offer.programs.items()],
    }
    for label, values in rows.items():
        if shown := [to_one_line(word) for word in values if word]:
            yield _row(label, _join_values(shown))
    for need in missing:
        yield _row("missing", to_one_line(need.summary))
    for risk in offer.risks:
        yield _row("LOOK" if risk.is_error else "look at", to_one_line(risk.summary))
    for fault in offer.faults:
        yield _row("error" if fault.is_error else "warning", to_one_line(fault.summary))


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"


def _join_values(values: Iterable[str]) -> str:
    values = list(values)
    rest = len(values) - _MAX_VALUES
    return ", ".join(values[:_MAX_VALUES]) + (f" and {rest} more" if rest > 0 else "")


def _format_program(name: str) -> str:
    return name if shutil.which(name) else f"{name} (not installed)"


def _format_variable(name: str) -> str:
    return name if not name or os.environ.get(name) else f"{name} (not set)"
