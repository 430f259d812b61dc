"""Normalizes sender ids, so that different spellings of one sender match.

`+49 151 234` and `49151234:7@s.whatsapp.net` are one number. A name, which the sender chooses freely, never matches an
id, which the platform verifies. Case is folded in ASCII only, and only where the platform ignores case: Unicode
folding would make two senders one (the Kelvin sign folds to k).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

EVERYBODY = "*"
LONGEST = 256
"""Longest id, in characters; no platform has longer ones."""
_LONGEST_NAME = 40
_NOT_IN_A_NAME = frozenset("@()[]<>*`~|\\#")
"""Characters that could pass for a handle or for markup."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NUMBER = re.compile(r"-?[0-9]{1,32}")
_WRITTEN_NUMBER = re.compile(r"\+[0-9][0-9 ()./-]{1,40}")
_JID = re.compile(r"([0-9]+)(?:_[0-9]+)?(?::[0-9]+)?@(s\.whatsapp\.net|c\.us|hosted|lid|hosted\.lid)")
"""WhatsApp addresses: number, agent, device, server. The digits of a `lid` are not a phone number."""
_MATRIX = re.compile(r"@([^:@|\s]+):([A-Za-z0-9.:\[\]-]+)")
_MAIL = re.compile(r"[^@|\s]+@[^@|\s]+")
_HANDLE = re.compile(r"@([A-Za-z0-9_.-]{1,64})")
_MENTION = re.compile(r"<@[!&]?([A-Za-z0-9]+)(?:\|[^>|]*)?>")
"""A mention as Slack and Discord write it in a text, which people copy."""
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True, slots=True)
class Sender:
    """A sender or group id, normalized."""

    id: str
    """As written in `allowFrom` and pairing.json."""
    key: str
    """Equal for all spellings of this id and for no other; empty without an id."""
    names: frozenset[str] = frozenset()
    """Keys of its names, which may pass to another sender."""

    @classmethod
    def of(cls, sender_id: str) -> "Sender":
        """Parse a channel's sender id: an id, or an id and names as `id|username`. Never raises."""
        first, *names = sender_id.split("|")
        if not first or not all(_NAME.fullmatch(name.removeprefix("@")) for name in names if name):
            first, names = sender_id, []  # the bar is part of the id
        normalized, key = _normalize(first)
        return cls(normalized, key, _name_keys(first, names) if key else frozenset())


def _normalize(text: str) -> tuple[str, str]:
    """Return the id as people write it, and its key."""
    if not text or len(text) > LONGEST:
        return text[:LONGEST], ""
    if jid := _JID.fullmatch(text):
        number, server = jid.groups()
        return (f"{number}@lid", f"lid:{number}") if server.endswith("lid") else (f"+{number}", f"number:{number}")
    if _NUMBER.fullmatch(text):
        return text, f"number:{text}"
    if _WRITTEN_NUMBER.fullmatch(text):
        digits = re.sub(r"[^0-9]", "", text)
        return f"+{digits}", f"number:{digits}"
    if matrix := _MATRIX.fullmatch(text):
        normalized = f"@{matrix[1]}:{matrix[2].translate(_LOWER)}"  # old servers keep the case of the local part
        return normalized, f"matrix:{normalized}"
    if handle := _HANDLE.fullmatch(text):
        return text, f"name:{handle[1].translate(_LOWER)}"
    if _MAIL.fullmatch(text):
        return text.translate(_LOWER), f"mail:{text.translate(_LOWER)}"
    return text, f"id:{text}"


def _name_keys(first: str, names: Iterable[str]) -> frozenset[str]:
    """The keys of the names. Where ids are numbers, a name without its @ is unambiguous and matches too."""
    handles = {name.removeprefix("@").translate(_LOWER) for name in names if name}
    words = handles if _NUMBER.fullmatch(first) else set()
    return frozenset({f"name:{name}" for name in handles} | {f"word:{name}" for name in words})


def display_name(name: str, handle: str = "") -> str:
    """`Bob (@bob)`, from the name that a person chose and the handle that the platform verifies; both may be empty.

    The name is untrusted: it becomes one short line, without control characters, markup, or anything like a handle.
    """
    plain = "".join(char if char.isprintable() and char not in _NOT_IN_A_NAME else " " for char in name)
    plain = " ".join(plain.split())[:_LONGEST_NAME].rstrip()
    if not _NAME.fullmatch(handle):
        return plain
    return f"{plain} (@{handle})" if plain else f"@{handle}"


class SenderList:
    """Entries as people write them in `allowFrom`: ids in any spelling, `@name`, `*` for everybody."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self.entries = tuple(entries)
        self.everybody = any(entry.strip() == EVERYBODY for entry in self.entries)
        self._keys = frozenset(key for entry in self.entries for key in _keys_of(entry))

    def matches(self, sender: Sender) -> bool:
        """Whether an entry is this sender; `*` does not count."""
        return bool(sender.key) and (sender.key in self._keys or not self._keys.isdisjoint(sender.names))

    def admits(self, sender: Sender) -> bool:
        """Whether this sender is allowed, by an entry or by `*`."""
        return self.everybody or self.matches(sender)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __repr__(self) -> str:
        return f"SenderList({list(self.entries)!r})"


def _keys_of(entry: str) -> Iterable[str]:
    """The keys of an entry; of `id|name` only the id, since the name may pass to another sender."""
    text = entry.strip()
    mention = _MENTION.fullmatch(text)
    sender = Sender.of(mention[1] if mention else text)
    if not sender.key or sender.id == EVERYBODY:
        return ()
    if sender.key == f"id:{sender.id}" and _NAME.fullmatch(sender.id):
        return (sender.key, f"word:{sender.id.translate(_LOWER)}")
    return (sender.key,)
