"""Who wrote: the one place that says whether two spellings of a sender are the same one.

People write `+49 151 234`, a platform says `49151234:7@s.whatsapp.net`; both are one number. What a sender can choose
freely (a name) is never taken for what the platform vouches for (an id). Letters are folded in ASCII only, and only
where the platform folds them: wider folding makes two people one (the Kelvin sign is no k).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

EVERYBODY = "*"
LONGEST = 256
"""Characters of an id; no platform has longer ones."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NUMBER = re.compile(r"-?[0-9]{1,32}")
_WRITTEN_NUMBER = re.compile(r"\+[0-9][0-9 ()./-]{1,40}")
_JID = re.compile(r"([0-9]+)(?:_[0-9]+)?(?::[0-9]+)?@(s\.whatsapp\.net|c\.us|hosted|lid|hosted\.lid)")
"""WhatsApp's addresses: a number, an agent, a device, a server. `lid` hides the number: its digits are no phone's."""
_MATRIX = re.compile(r"@([^:@|\s]+):([A-Za-z0-9.:\[\]-]+)")
_MAIL = re.compile(r"[^@|\s]+@[^@|\s]+")
_HANDLE = re.compile(r"@([A-Za-z0-9_.-]{1,64})")
_MENTION = re.compile(r"<@[!&]?([A-Za-z0-9]+)(?:\|[^>|]*)?>")
"""A person as Slack and Discord write one in a text; people copy that."""
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True, slots=True)
class Sender:
    """One who wrote, or the id of a group, taken apart."""

    id: str
    """As one writes it in `allowFrom`, and as it stands in pairing.json."""
    key: str
    """The same for all spellings of this id and for no other; empty where there is no id."""
    names: frozenset[str] = frozenset()
    """What it may be called besides. Names change hands."""

    @classmethod
    def of(cls, sender_id: str) -> "Sender":
        """Take apart what a channel says: an id, or an id and names as `id|username`. Never raises."""
        first, *names = sender_id.split("|")
        if not first or not all(_NAME.fullmatch(name.removeprefix("@")) for name in names if name):
            first, names = sender_id, []  # a bar in somebody's id, not ours
        spelled, key = _spelled(first)
        return cls(spelled, key, _names_of(first, names) if key else frozenset())


def _spelled(text: str) -> tuple[str, str]:
    """An id as one writes it, and its key."""
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
        spelled = f"@{matrix[1]}:{matrix[2].translate(_LOWER)}"  # of the first half, old servers keep the case
        return spelled, f"matrix:{spelled}"
    if handle := _HANDLE.fullmatch(text):
        return text, f"name:{handle[1].translate(_LOWER)}"
    if _MAIL.fullmatch(text):
        return text.translate(_LOWER), f"mail:{text.translate(_LOWER)}"
    return text, f"id:{text}"


def _names_of(first: str, names: Iterable[str]) -> frozenset[str]:
    """The keys of the names. Where ids are numbers, a name without its @ can be nothing else, and counts too."""
    handles = {name.removeprefix("@").translate(_LOWER) for name in names if name}
    words = handles if _NUMBER.fullmatch(first) else set()
    return frozenset({f"name:{name}" for name in handles} | {f"word:{name}" for name in words})


class SenderList:
    """Entries as people write them in `allowFrom`: ids in any spelling, `@name`, `*` for everybody."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self.entries = tuple(entries)
        self.everybody = any(entry.strip() == EVERYBODY for entry in self.entries)
        self._keys = frozenset(key for entry in self.entries for key in _keys_of(entry))

    def names(self, sender: Sender) -> bool:
        """Whether an entry is this sender; `*` names nobody."""
        return bool(sender.key) and (sender.key in self._keys or not self._keys.isdisjoint(sender.names))

    def admits(self, sender: Sender) -> bool:
        """Whether this sender is let in, by an entry or as everybody."""
        return self.everybody or self.names(sender)

    def __bool__(self) -> bool:
        """Whether there is an entry at all."""
        return bool(self.entries)

    def __repr__(self) -> str:
        return f"SenderList({list(self.entries)!r})"


def _keys_of(entry: str) -> Iterable[str]:
    """Of `id|name` only the id: the name may be somebody else's tomorrow."""
    text = entry.strip()
    mention = _MENTION.fullmatch(text)
    sender = Sender.of(mention[1] if mention else text)
    if not sender.key or sender.id == EVERYBODY:
        return ()
    if sender.key == f"id:{sender.id}" and _NAME.fullmatch(sender.id):
        return (sender.key, f"word:{sender.id.translate(_LOWER)}")
    return (sender.key,)
