"""The text of a chat message as a person may see it, without context that was added for the model."""

import re

from nanobot.messages.types import ChatMessage, Origin

CONTEXT_MARK = "[Runtime Context"
"""Start of every runtime context, also in old sessions."""
CONTEXT_CLOSE = "[/Runtime Context]"
JOB_NOTE = '[Scheduled job "'
"""Start of the note below the text of a due job."""
GOAL_CHECK = "At the end this must hold:"
GOAL_RULES = "You work at this by yourself, turn after turn:"
"""Text after a goal in the message of its first turn."""
_GOAL = re.compile(rf"\[Goal, turn 1: [^\]\n]*\]\n\n(.*?)\n\n(?:{GOAL_CHECK}|{GOAL_RULES}) ", re.DOTALL)
_CONTEXT_LINE = re.compile(r"(?:Current Time|Channel|Chat ID|Sender ID|Sender|Timezone)\s*:")


def shown_text(message: ChatMessage) -> str:
    """The text of a message as a person may see it.

    Empty for generated messages and for answers that a review sent back. The runtime context that old sessions store in
    the content is removed.
    """
    if message.get("sent_back"):
        return ""
    if message.get("origin") in (Origin.SYSTEM, Origin.GOAL) and message.get("role") == "user":
        return ""
    content = message.get("content")
    text = content if isinstance(content, str) else "\n".join(_texts(content))
    return _without_runtime_context(text) if message.get("role") == "user" else text


def visible_text(message: ChatMessage) -> str:
    """Like `shown_text`, for views of a conversation: the first message of a goal shows the goal."""
    if message.get("role") == "user" and message.get("origin") == Origin.GOAL:
        match = _GOAL.match(str(message.get("content")))
        return f"[goal] {match[1]}" if match else ""
    return shown_text(message)


def _texts(content: object) -> list[str]:
    blocks = content if isinstance(content, list) else ()
    texts = (block.get("text") if isinstance(block, dict) else block for block in blocks)
    return [text for text in texts if isinstance(text, str)]


def _without_runtime_context(text: str) -> str:
    """Remove a runtime context at the end of the text; one that the person typed in the middle stays."""
    start = text.rfind(CONTEXT_MARK)
    if start < 0 or (start > 0 and text[start - 1] != "\n"):
        return text
    block = text[start:].rstrip()
    closed = block.endswith(CONTEXT_CLOSE)
    if closed or all(_CONTEXT_LINE.match(line) for line in block.splitlines()[1:]):
        return text[:start].rstrip()
    return text
