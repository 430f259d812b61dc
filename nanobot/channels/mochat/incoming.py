"""Converts Mochat's messages to `Incoming`. Pure functions.

A message comes as the payload of an event, as a notification, or in a list of a panel's messages; the names of its
fields differ a little.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nanobot.channels.incoming import Incoming
from nanobot.channels.payload import Payload

_MENTION_LISTS = ("mentions", "mentionIds", "mentionedUserIds", "mentionedUsers")
_USER_IDS = ("id", "userId", "_id")


def read_message(message: Payload, chat_id: str, agent_id: str, *, is_private: bool) -> Incoming | None:
    """Read a message. None for the agent's own, and for one that does not say who wrote it."""
    sender = message.line("author")
    if not sender or sender == agent_id:
        return None
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    at = re.compile(rf"<@{re.escape(agent_id)}>|@{re.escape(agent_id)}(?!\w)")
    meta, author = message.part("meta"), message.part("authorInfo")
    group_id = message.line("groupId")
    return Incoming(
        sender,
        chat_id,
        at.sub("", text).strip(),
        message.line("messageId") or message.line("_id") or None,
        is_private=is_private and not group_id,
        is_mentioned=(
            meta.get("mentioned") is True
            or meta.get("wasMentioned") is True
            or any(agent_id in read_users(meta.get(name)) for name in _MENTION_LISTS)
            or at.search(text) is not None
        ),
        parent_ids=(group_id,) if group_id else (),
        sender_name=author.line("nickname") or author.line("email"),
        sent_at=message.iso_time("createdAt"),
    )


def merge(messages: Sequence[Incoming]) -> Incoming:
    """One message for several of a panel, each with its sender's name. It has the ids of the last one."""
    *_, last = messages
    if len(messages) == 1:
        return last
    return replace(
        last,
        text="\n".join(f"{one.display_name or one.sender_id}: {one.text}" for one in messages),
        quotes_others=any(one.sender_id != last.sender_id for one in messages),
    )


def read_users(value: object) -> set[str]:
    """The ids of a list of users, which are ids or have them."""
    users = value if isinstance(value, list) else []
    named = [Payload.of(user) if isinstance(user, Mapping) else Payload(id=user) for user in users]
    ids = (next(filter(None, (user.line(key) for key in _USER_IDS)), "") for user in named)
    return {user_id for user_id in ids if user_id}
