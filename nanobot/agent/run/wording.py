"""What is said about an approval: the question to the owner, and to the model why a call was not done.

The owner sees the exact arguments, with secrets masked and with what would hide or turn around a part of them written
out. The model is told the truth and what to do instead.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from nanobot.agent.run.outside import own_provenance
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.messages.types import ChatMessage, Provenance
from nanobot.providers.base import ToolCallRequest
from nanobot.utils.text import clip, clip_line

_MOST_SHOWN = 3000
"""Characters of one argument that a question shows; of a longer one its head and its tail."""
_LONGEST_NAME = 160

_SAYS = {
    ReachKind.COMMAND: "run a command",
    ReachKind.FOLDER: "write in {target}",
    ReachKind.SECRETS: "open {target}, where keys or nanobot's own state are kept",
    ReachKind.DEVICE: "use the device {target}",
    ReachKind.SERVICE: "talk with the service {target}",
    ReachKind.NETWORK: "use the network in a command",
    ReachKind.RECIPIENT: "write to {target}",
    ReachKind.HOST: "send data to {target}",
    ReachKind.JOB: "make or change a job that acts later",
    ReachKind.MEMORY: "write {target}, which every later turn reads",
    ReachKind.SKILL: "write {target}, which later turns follow",
    ReachKind.TOOL: "use the tool {target}",
}
_KINDS = {
    Provenance.MCP: "a tool server",
    Provenance.PERSON: "somebody else",
    Provenance.MAIL: "a mail",
    Provenance.WEB: "the web",
}


class Wording:
    """The words."""

    def __init__(self, mask: Callable[[str], str]) -> None:
        self._mask = mask

    def question(self, call: ToolCallRequest, asked: Sequence[Reach], source: str) -> str:
        """The whole question, in Markdown."""
        lines = [f"**May I {self._doing(asked)}?**", *self._arguments(call)]
        details = dict.fromkeys(self.line(one.detail) for one in asked if one.detail)
        lines += details
        if any(len(self._text(value)) > _MOST_SHOWN for value in call.arguments.values()):
            lines.append("Not all of it is shown here, and a yes holds for all of it.")
        if source:
            lines.append(f"I ask because words that are not yours are in play: {self.line(source)}.")
        return "\n".join(lines)

    def masked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments as events carry them."""
        return {name: self._masked(value) for name, value in arguments.items()}

    def line(self, text: str) -> str:
        """A text in one harmless line."""
        return clip_line(" ".join(plain(self._mask(text)).split()), _LONGEST_NAME * 4)

    def denied(self, name: str, asked: Sequence[Reach], source: str) -> str:
        """For the model: the config says no."""
        return (
            f"{name} was not run: it would {self._doing(asked)}{self._because(source)}, and tools.approval is `deny`. "
            "Do not try it another way. Do what can be done without it, and tell what you would have done."
        )

    def nobody_there(self, name: str, asked: Sequence[Reach], source: str, why_not: str) -> str:
        """For the model: nobody can be asked."""
        return (
            f"{name} was not run: it would {self._doing(asked)}{self._because(source)}; that needs the owner's yes. "
            f"{why_not} Do not try it another way. Do what can be done without it, and say in your answer what you "
            "wanted to do, and why."
        )

    def refused(self, name: str) -> str:
        """For the model: the owner said no."""
        return (
            f"{name} was not run: the owner was asked and said no. Do not ask for the same in other words. Go on "
            "without it, or ask in your answer what they want instead."
        )

    def unanswered(self, name: str, seconds: float) -> str:
        """For the model: nobody answered."""
        return (
            f"{name} was not run: the owner was asked and did not answer within {seconds / 60:g} minutes. Go on "
            "without it, and say in your answer what still waits for their yes."
        )

    def _doing(self, asked: Sequence[Reach]) -> str:
        told = [_SAYS[one.kind].format(target=self.line(one.target)) for one in asked]
        return " and ".join(dict.fromkeys(told))

    def _because(self, source: str) -> str:
        return f" while words from outside are in play ({self.line(source)})" if source else ""

    def _arguments(self, call: ToolCallRequest) -> list[str]:
        shown = [f"{self.line(name)}: {self._shown(value)}" for name, value in call.arguments.items()]
        body = "\n".join([call.name, *shown])
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", body)), default=0))
        return [fence, *body.split("\n"), fence]

    def _shown(self, value: Any) -> str:
        return clip(self._text(value), _MOST_SHOWN, "{left_out} characters are not shown here")

    def _text(self, value: Any) -> str:
        """All of an argument. What is empty in it and so long that the rest would be out of sight is counted."""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        text = _EMPTY_LINES.sub(
            lambda found: f"\n({found[0].count(chr(10)) - 1} empty lines)\n", plain(self._mask(text))
        )
        return _SPACES.sub(lambda found: f" ({len(found[0])} spaces) ", text)

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._mask(value)
        if isinstance(value, dict):
            return {name: self._masked(inner) for name, inner in value.items()}
        return [self._masked(inner) for inner in value] if isinstance(value, list | tuple) else value


def plain(text: str) -> str:
    """The text with what steers a screen or turns the order of letters around written out (`\\u202e`)."""
    return "".join(
        f"\\u{ord(letter):04x}"
        if letter in _BLANK or (letter not in "\n\t" and unicodedata.category(letter) in _HIDDEN)
        else letter
        for letter in text.replace("\r\n", "\n")
    )


_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n){4,}")
_SPACES = re.compile(r"[^\S\n]{40,}")
_BLANK = frozenset("\u034f\u115f\u1160\u2800\u3164\uffa0")
"""Letters that look like nothing."""
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def kind_of(provenance: Provenance) -> str:
    """Whose words they are, where nothing more is known of them."""
    return _KINDS.get(provenance, "somebody else")


def shown_source(row: ChatMessage, rows: Sequence[ChatMessage]) -> str:
    """Whose words a row holds, for a person: `web_fetch https://example.org`, `a mail`, `ann on telegram`."""
    if row["role"] == "user":
        who = row.get("sender_id")
        kind = kind_of(_provenance(row))
        return f"a message from {who}" if who and kind == "somebody else" else kind
    if row["role"] == "assistant":
        return "what was said after reading words from outside"
    name = str(row.get("name", "a tool"))
    before = takewhile(lambda other: other is not row, rows)
    arguments = [
        call["function"]["arguments"]
        for other in before
        if other.get("turn_id") == row.get("turn_id")
        for call in other.get("tool_calls") or ()
        if call["id"] == row.get("tool_call_id")
    ]
    # The last one: some servers number the calls of each step anew.
    return clip_line(f"{name} {_first_argument(arguments[-1])}".strip(), _LONGEST_NAME) if arguments else name


def _provenance(row: ChatMessage) -> Provenance:
    return next((one for one in Provenance if one == own_provenance(row)), Provenance.WEB)


def _first_argument(arguments: str) -> str:
    try:
        found = json.loads(arguments)
    except ValueError:
        return ""
    return str(next(iter(found.values()), "")) if isinstance(found, dict) else ""
