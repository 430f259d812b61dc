"""Texts of approvals: the question to the owner, and for the model why a call was not run.

The owner sees the exact arguments, with secrets redacted and with invisible or direction-changing characters spelled
out.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from nanobot.agent.approval.taint import own_provenance
from nanobot.agent.tools.base import Access, AccessKind
from nanobot.messages.types import ChatMessage, Provenance, least_trusted
from nanobot.providers.base import ToolCallRequest, parse_arguments
from nanobot.security.secrets import redact_named
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
_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n){4,}")
_SPACES = re.compile(r"[^\S\n]{40,}")
_BLANK = frozenset("\u034f\u115f\u1160\u2800\u3164\uffa0")
"""Letters that look like nothing."""
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def question(call: ToolCallRequest, needed: Sequence[Access], source: str) -> str:
    """Return the whole question, in Markdown."""
    arguments = {one_line(name): _shown(value) for name, value in call.arguments.items()}
    left_out = "{left_out} characters are not shown here"
    body = "\n".join([call.name, *(f"{name}: {clip(text, _MAX_SHOWN, left_out)}" for name, text in arguments.items())])
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", body)), default=0))
    lines = [f"**May I {_describe_actions(needed)}?**", fence, *body.split("\n"), fence]
    lines += dict.fromkeys(one_line(access.detail) for access in needed if access.detail)
    if any(len(text) > _MAX_SHOWN for text in arguments.values()):
        lines.append("Not all of it is shown here; a yes allows all of it.")
    if source:
        lines.append(f"I ask because untrusted content is in play: {one_line(source)}.")
    return "\n".join(lines)


def one_line(text: str) -> str:
    """Return the text as one harmless line."""
    return clip_line(" ".join(without_markup(redact_named(text)).split()), _MAX_NAME * 4)


def not_run(name: str, reason: str) -> str:
    """For the model: why the call was not run, and what to do instead."""
    return (
        f"{name} was not run: {reason} Do not try it another way. Do what can be done without it, and say in your "
        "answer what you wanted to do, and why."
    )


def needs_yes(needed: Sequence[Access], source: str, why_not: str) -> str:
    """For the model: what needs the owner's yes, and why nobody can be asked."""
    taint = f" while untrusted content is in play ({one_line(source)})" if source else ""
    return f"it would {_describe_actions(needed)}{taint}; that needs the owner's yes. {why_not}"


def _describe_actions(needed: Sequence[Access]) -> str:
    return " and ".join(
        dict.fromkeys(_ACTIONS[access.kind].format(target=one_line(access.target)) for access in needed)
    )


def _shown(value: Any) -> str:
    """Return all of an argument. Long runs of blank lines and spaces are counted: they would hide what follows."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = _EMPTY_LINES.sub(
        lambda match: f"\n({match[0].count(chr(10)) - 1} empty lines)\n", without_markup(redact_named(text))
    )
    return _SPACES.sub(lambda match: f" ({len(match[0])} spaces) ", text)


def without_markup(text: str) -> str:
    """Return the text with invisible, control and direction-changing characters spelled out (`\\u202e`)."""
    return "".join(
        f"\\u{ord(letter):04x}"
        if letter in _BLANK or (letter not in "\n\t" and unicodedata.category(letter) in _HIDDEN)
        else letter
        for letter in text.replace("\r\n", "\n")
    )


def describe_provenance(provenance: Provenance) -> str:
    """Describe where untrusted content comes from, if no more than its provenance is known."""
    return _PROVENANCES.get(provenance, "somebody else")


def format_source(row: ChatMessage, rows: Sequence[ChatMessage]) -> str:
    """Name the source of a row for a person: `web_fetch https://example.org`, `a mail`, `a message from ann`."""
    if row["role"] == "user":
        sender = row.get("sender_id")
        kind = describe_provenance(least_trusted([own_provenance(row)]))
        return f"a message from {sender}" if sender and kind == "somebody else" else kind
    if row["role"] == "assistant":
        return "what was said after reading untrusted content"
    argument: object = ""
    for earlier in takewhile(lambda other: other is not row, rows):
        for call in earlier.get("tool_calls") or () if earlier.get("turn_id") == row.get("turn_id") else ():
            if call["id"] == row.get("tool_call_id"):  # the last one: some servers restart the ids in each step
                argument = next(iter(parse_arguments(call["function"]["arguments"])[0].values()), "")
    return clip_line(f"{row.get('name', 'a tool')} {argument}".strip(), _MAX_NAME)
