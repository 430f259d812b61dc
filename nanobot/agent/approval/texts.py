"""Texts of approvals: the question to the owner, and for the model why a call was not run.

The owner sees the exact arguments, with secrets redacted and with invisible or direction-changing characters spelled
out.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from nanobot.agent.taint import own_provenance
from nanobot.agent.tools.access import Access, AccessKind
from nanobot.messages.types import ChatMessage, Provenance
from nanobot.providers.base import ToolCallRequest, parse_arguments
from nanobot.utils.text import clip, clip_line

_MAX_SHOWN = 3000
"""Characters of one argument that a question shows; of a longer one its head and its tail."""
_MAX_NAME = 160

_ACTIONS = {
    AccessKind.COMMAND: "run a command",
    AccessKind.FOLDER: "write in {target}",
    AccessKind.SECRETS: "open {target}, where keys or nanobot's own state are kept",
    AccessKind.DEVICE: "use the device {target}",
    AccessKind.SERVICE: "talk with the service {target}",
    AccessKind.NETWORK: "use the network in a command",
    AccessKind.RECIPIENT: "write to {target}",
    AccessKind.HOST: "send data to {target}",
    AccessKind.JOB: "make or change a job that acts later",
    AccessKind.MEMORY: "write {target}, which every later turn reads",
    AccessKind.SKILL: "write {target}, which later turns follow",
    AccessKind.AUTORUN: "write {target}, which programs may run later, outside the sandbox",
    AccessKind.TOOL: "use the tool {target}",
}
_PROVENANCES = {
    Provenance.MCP: "a tool server",
    Provenance.PERSON: "somebody else",
    Provenance.MAIL: "a mail",
    Provenance.WEB: "the web",
}


class ApprovalTexts:
    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact

    def question(self, call: ToolCallRequest, needed: Sequence[Access], source: str) -> str:
        """Return the whole question, in Markdown."""
        lines = [f"**May I {self._describe_actions(needed)}?**", *self._arguments(call)]
        lines += dict.fromkeys(self.line(access.detail) for access in needed if access.detail)
        if any(len(self._text(value)) > _MAX_SHOWN for value in call.arguments.values()):
            lines.append("Not all of it is shown here; a yes allows all of it.")
        if source:
            lines.append(f"I ask because untrusted content is in play: {self.line(source)}.")
        return "\n".join(lines)

    def redact_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments without secrets, as events carry them."""
        return {name: self._redact_value(value) for name, value in arguments.items()}

    def line(self, text: str) -> str:
        """Return the text as one harmless line."""
        return clip_line(" ".join(without_markup(self._redact(text)).split()), _MAX_NAME * 4)

    def denial(self, name: str, needed: Sequence[Access], source: str) -> str:
        """For the model: the config forbids it."""
        return (
            f"{name} was not run: it would {self._describe_actions(needed)}{self._describe_taint(source)}, and "
            "tools.approval is `deny`. Do not try it another way. Do what can be done without it, and say what you "
            "would have done."
        )

    def nobody_available(self, name: str, needed: Sequence[Access], source: str, why_not: str) -> str:
        """For the model: nobody can be asked."""
        return (
            f"{name} was not run: it would {self._describe_actions(needed)}{self._describe_taint(source)}; that needs "
            f"the owner's yes. {why_not} Do not try it another way. Do what can be done without it, and say in your "
            "answer what you wanted to do, and why."
        )

    def refusal(self, name: str) -> str:
        """For the model: the owner refused."""
        return (
            f"{name} was not run: the owner was asked and said no. Do not ask for the same in other words. Go on "
            "without it, or ask in your answer what they want instead."
        )

    def no_answer(self, name: str, seconds: float) -> str:
        """For the model: the owner did not answer in time."""
        return (
            f"{name} was not run: the owner was asked and did not answer within {seconds / 60:g} minutes. Go on "
            "without it, and say in your answer what still waits for their yes."
        )

    def _describe_actions(self, needed: Sequence[Access]) -> str:
        actions = [_ACTIONS[access.kind].format(target=self.line(access.target)) for access in needed]
        return " and ".join(dict.fromkeys(actions))

    def _describe_taint(self, source: str) -> str:
        return f" while untrusted content is in play ({self.line(source)})" if source else ""

    def _arguments(self, call: ToolCallRequest) -> list[str]:
        arguments = [f"{self.line(name)}: {self._clip(value)}" for name, value in call.arguments.items()]
        body = "\n".join([call.name, *arguments])
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", body)), default=0))
        return [fence, *body.split("\n"), fence]

    def _clip(self, value: Any) -> str:
        return clip(self._text(value), _MAX_SHOWN, "{left_out} characters are not shown here")

    def _text(self, value: Any) -> str:
        """Return all of an argument. Long runs of blank lines and spaces are counted: they would hide what follows."""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        text = _EMPTY_LINES.sub(
            lambda match: f"\n({match[0].count(chr(10)) - 1} empty lines)\n", without_markup(self._redact(text))
        )
        return _SPACES.sub(lambda match: f" ({len(match[0])} spaces) ", text)

    def _redact_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._redact(value)
        if isinstance(value, dict):
            return {name: self._redact_value(inner) for name, inner in value.items()}
        return [self._redact_value(inner) for inner in value] if isinstance(value, list | tuple) else value


def without_markup(text: str) -> str:
    """Return the text with invisible, control and direction-changing characters spelled out (`\\u202e`)."""
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


def describe_provenance(provenance: Provenance) -> str:
    """Describe where untrusted content comes from, if no more than its provenance is known."""
    return _PROVENANCES.get(provenance, "somebody else")


def format_source(row: ChatMessage, rows: Sequence[ChatMessage]) -> str:
    """Name the source of a row for a person: `web_fetch https://example.org`, `a mail`, `a message from ann`."""
    if row["role"] == "user":
        sender = row.get("sender_id")
        kind = describe_provenance(_provenance(row))
        return f"a message from {sender}" if sender and kind == "somebody else" else kind
    if row["role"] == "assistant":
        return "what was said after reading untrusted content"
    name = str(row.get("name", "a tool"))
    arguments = [
        call["function"]["arguments"]
        for earlier in takewhile(lambda other: other is not row, rows)
        if earlier.get("turn_id") == row.get("turn_id")
        for call in earlier.get("tool_calls") or ()
        if call["id"] == row.get("tool_call_id")
    ]
    # the last one: some servers restart the call ids in each step
    return clip_line(f"{name} {_first_argument(arguments[-1])}".strip(), _MAX_NAME) if arguments else name


def _provenance(row: ChatMessage) -> Provenance:
    return next((known for known in Provenance if known == own_provenance(row)), Provenance.WEB)


def _first_argument(arguments: str) -> str:
    return str(next(iter(parse_arguments(arguments)[0].values()), ""))
