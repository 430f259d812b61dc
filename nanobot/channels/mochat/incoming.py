"""Converts Mochat's messages to `Incoming`. Pure functions.

A message comes as the payload of an event, as a notification, or in a list of a panel's messages; the names of its
fields differ a little. All values are checked: one that is not as expected must not end the connection.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from nanobot.channels.incoming import Incoming

_MENTION_LISTS = ("mentions", "mentionIds", "mentionedUserIds", "mentionedUsers")
_USER_IDS = ("id", "userId", "_id")


def read_message(message: object, chat_id: str, agent_id: str, *, is_private: bool) -> Incoming | None:
    """Read a message. None for the agent's own, and for one that does not say who wrote it."""
    fields = as_dict(message)
    sender = as_text(fields.get("author"))
    if not sender or sender == agent_id:
        return None
    content = fields.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    at = re.compile(rf"<@{re.escape(agent_id)}>|@{re.escape(agent_id)}(?!\w)")
    meta, author = as_dict(fields.get("meta")), as_dict(fields.get("authorInfo"))
    group_id = as_text(fields.get("groupId"))
    return Incoming(
        sender,
        chat_id,
        at.sub("", text).strip(),
        as_text(fields.get("messageId")) or as_text(fields.get("_id")) or None,
        is_private=is_private and not group_id,
        is_mentioned=(
            meta.get("mentioned") is True
            or meta.get("wasMentioned") is True
            or any(agent_id in read_users(meta.get(name)) for name in _MENTION_LISTS)
            or at.search(text) is not None
        ),
        parent_ids=(group_id,) if group_id else (),
        sender_name=" ".join((as_text(author.get("nickname")) or as_text(author.get("email"))).split()),
        sent_at=_read_time(fields.get("createdAt")),
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
    found = (next(filter(None, (as_text(as_dict(one).get(key)) for key in _USER_IDS)), as_text(one)) for one in users)
    return {user for user in found if user}


def _read_time(value: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(as_text(value))
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def as_text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def as_dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def as_dicts(value: object) -> list[Mapping[str, Any]]:
    return [as_dict(one) for one in value] if isinstance(value, list) else []
