"""What of a chat message a person may see: its words, without what we said beside them to the model."""

import re

from nanobot.messages.types import ChatMessage, Origin

CONTEXT_MARK = "[Runtime Context"
"""How every runtime context begins, those of old sessions too."""
CONTEXT_CLOSE = "[/Runtime Context]"
GOAL_CHECK = "At the end this must hold:"
GOAL_RULES = "You work at this by yourself, turn after turn:"
"""What stands behind a goal in the message of its first turn."""
_GOAL = re.compile(rf"\[Goal, turn 1: [^\]\n]*\]\n\n(.*?)\n\n(?:{GOAL_CHECK}|{GOAL_RULES}) ", re.DOTALL)
_CONTEXT_LINE = re.compile(r"(?:Current Time|Channel|Chat ID|Sender ID|Sender|Timezone)\s*:")


def shown_text(message: ChatMessage) -> str:
    """The words of a message as a person may see them.

    Without the runtime context that old sessions hold inside the content, and nothing of our own words to the model.
    """
    if message.get("origin") in (Origin.SYSTEM, Origin.GOAL) and message.get("role") == "user":
        return ""
    content = message.get("content")
    text = content if isinstance(content, str) else "\n".join(_texts(content))
    return _without_runtime_context(text) if message.get("role") == "user" else text


def seen_text(message: ChatMessage) -> str:
    """The same for somebody who looks at a conversation: what a goal is about stands where its first turn begins."""
    if message.get("role") == "user" and message.get("origin") == Origin.GOAL:
        found = _GOAL.match(str(message.get("content")))
        return f"[goal] {found[1]}" if found else ""
    return shown_text(message)


def _texts(content: object) -> list[str]:
    blocks = content if isinstance(content, list) else ()
    texts = (block.get("text") if isinstance(block, dict) else block for block in blocks)
    return [text for text in texts if isinstance(text, str)]


def _without_runtime_context(text: str) -> str:
    """The text before a runtime context that ends it; one the person typed in the middle stays."""
    start = text.rfind(CONTEXT_MARK)
    if start < 0 or (start > 0 and text[start - 1] != "\n"):
        return text
    block = text[start:].rstrip()
    closed = block.endswith(CONTEXT_CLOSE)
    if closed or all(_CONTEXT_LINE.match(line) for line in block.splitlines()[1:]):
        return text[:start].rstrip()
    return text
