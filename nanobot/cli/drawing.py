"""How texts become lines of a screen. Rich is imported with the first text: the request is on its way by then."""

import logging
from dataclasses import dataclass

from nanobot.cli.answer import Draw

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draws:
    """Two ways: for what a model says, and for what we say ourselves."""

    answer: Draw
    plain: Draw


def draws(*, markdown: bool, colour: bool) -> Draws:
    """With Markdown or without, with colours or without. Drawing never raises."""

    def plain(source: str, width: int) -> list[str]:
        from nanobot.cli.markdown import plain_lines

        return plain_lines(source, width)

    def answer(source: str, width: int) -> list[str]:
        from nanobot.cli.markdown import markdown_lines

        try:
            return markdown_lines(source, width, colour)
        except Exception:  # whatever a model writes: how it looks is not worth a turn
            log.warning("Markdown that cannot be drawn is shown as it is.", exc_info=True)
            return plain(source, width)

    ours = Draw(plain, markdown=False)
    return Draws(Draw(answer) if markdown else ours, ours)
