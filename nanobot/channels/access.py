"""May this sender speak here? One answer for every channel: let in, given a code to pair with, or met with silence.

`decide` is the policy, a pure function of what the config says, who has paired, and who knocks. `Access` asks it with
the store behind it, gives out codes, and writes the line of the log by which an owner lets somebody in. In a group a
stranger hears nothing. Where something is not known, the answer is no.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from nanobot.config.channels import GroupPolicy
from nanobot.config.spelling import camel
from nanobot.errors import ConfigError, StorageError
from nanobot.messages.types import Provenance
from nanobot.pairing.book import People, Role
from nanobot.pairing.codes import VALID_S
from nanobot.pairing.knocks import Knocks
from nanobot.pairing.senders import Sender, SenderList
from nanobot.pairing.store import MOST_PENDING, PairingStore
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock

_GROUP_POLICIES = ("mention", "open", "allowlist")
_DIRECT_POLICIES = ("open", "allowlist")
_GROUP_LISTS = ("allowChannels", "groupAllowFrom")
MOST_LINES = 100
"""Refusals in the log in ten minutes; a crowd is not worth more."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Knock:
    """A message at the door, as far as it matters who sent it and where."""

    sender_id: str
    chat_id: str
    is_private: bool
    """Whether nobody but the sender and the bot reads along."""
    is_mentioned: bool = False
    """Whether it is meant for the bot: named, replied to, called by a command."""
    within: tuple[str, ...] = ()
    """What the chat is part of, as a thread is of its group: a list that names one of them names the chat."""
    also_known_as: tuple[str, ...] = ()
    """Further ids of the same sender that the platform vouches for: a WhatsApp number beside its LID."""
    is_proven: bool = True
    """Whether the platform vouches for the sender. A mail without aligned signatures is nobody's."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """They may speak; how far their words are trusted."""

    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Stranger:
    """Not known; they may ask to be. `reason` is a line for the log, with what to paste to let them in."""

    reason: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Not known; tell them `text`, once, in the private chat they wrote in."""

    code: str
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Silent:
    """Not a word. `reason` is a line for the log; empty where people talk among themselves."""

    reason: str = ""


Decision = Allowed | Pair | Silent


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """What the config says about a channel."""

    channel: str
    allow_from: SenderList = field(default_factory=SenderList)
    """Senders; and groups, in which then everybody may speak."""
    group_policy: GroupPolicy = "mention"
    """mention: what is meant for the bot; open: every message; allowlist: every message in groups that are listed."""
    groups: SenderList = field(default_factory=SenderList)
    """The groups it speaks in; empty means all, but for the policy allowlist."""
    groups_key: str = "allowFrom"
    """Where the config lists groups."""
    direct_enabled: bool = True
    direct_policy: Literal["open", "allowlist"] = "open"
    """allowlist: privately only who is in `direct_allow_from` or has paired; strangers get no code."""
    direct_allow_from: SenderList = field(default_factory=SenderList)

    @classmethod
    def of(cls, channel: str, section: BaseModel | Mapping[str, Any]) -> "AccessPolicy":
        """What a section under `channels` says, a plugin's too. Raises ConfigError for what it cannot mean."""
        key = f"channels.{channel}"
        told = _keys_of(section, key)
        direct = _keys_of(told.get("dm") or {}, f"{key}.dm")
        lists = {name: told[name] for name in _GROUP_LISTS if name in told}
        return cls(
            channel,
            _senders(told.get("allowFrom"), f"{key}.allowFrom"),
            _word(told.get("groupPolicy"), _GROUP_POLICIES, f"{key}.groupPolicy"),
            SenderList(entry for name, told in lists.items() for entry in _senders(told, f"{key}.{name}").entries),
            next(iter(lists), "allowFrom"),
            direct.get("enabled", True) is True,
            _word(direct.get("policy"), _DIRECT_POLICIES, f"{key}.dm.policy"),
            _senders(direct.get("allowFrom"), f"{key}.dm.allowFrom"),
        )


def decide(policy: AccessPolicy, people: People, knock: Knock) -> Allowed | Stranger | Silent:
    """Who is let in, who may ask to be, who is met with silence."""
    return (_privately if knock.is_private else _in_group)(policy, people, knock)


def _privately(policy: AccessPolicy, people: People, knock: Knock) -> Allowed | Stranger | Silent:
    channel, who = policy.channel, Sender.of(knock.sender_id)
    if not policy.direct_enabled:
        return Silent(f"{channel}: {_quoted(who.id)} is not heard: channels.{channel}.dm.enabled is false")
    is_open = policy.direct_policy == "open"
    lists = [policy.direct_allow_from, policy.allow_from] if is_open else [policy.direct_allow_from]
    allowed = _let_in(people, lists, knock)
    if allowed is not None:
        return allowed
    if not knock.is_proven:
        return Silent(f"{channel}: {_quoted(who.id)} is not heard: nobody vouches that they sent this")
    if not who.key:
        return Silent(f"{channel}: a sender without an id that could be listed is not heard")
    reason = _refused(channel, who, "allowFrom" if is_open else "dm.allowFrom")
    return Stranger(reason) if is_open else Silent(reason)


def _in_group(policy: AccessPolicy, people: People, knock: Knock) -> Allowed | Silent:
    channel, who = policy.channel, Sender.of(knock.sender_id)
    places = [Sender.of(one) for one in (knock.chat_id, *knock.within)]
    is_trusted = any(policy.allow_from.names(place) for place in places)
    is_listed = is_trusted or any(policy.groups.admits(place) for place in places)
    if not is_listed and (policy.groups or policy.group_policy == "allowlist"):
        paste = _paste(channel, policy.groups_key, places[0])
        return Silent(f"{channel}: the group {_quoted(places[0].id)} is not listed; to speak in it: {paste}")
    if policy.group_policy == "mention" and not knock.is_mentioned:
        return Silent()
    allowed = _let_in(people, [policy.allow_from], knock)
    if allowed is None and is_trusted:
        allowed = Allowed(Provenance.PERSON)
    return allowed or Silent(_refused(channel, who, "allowFrom"))


def _let_in(people: People, lists: Sequence[SenderList], knock: Knock) -> Allowed | None:
    """Who paired, who is listed, and anybody where everybody is; whom nobody vouches for is anybody."""
    known = [Sender.of(one) for one in (knock.sender_id, *knock.also_known_as)] if knock.is_proven else []
    roles = {people.role_of(sender) for sender in known}
    if Role.OWNER in roles:
        return Allowed(Provenance.OWNER)
    if Role.PERSON in roles or any(one.everybody for one in lists):
        return Allowed(Provenance.PERSON)
    is_named = any(one.names(sender) for one in lists for sender in known)
    return Allowed(Provenance.PERSON) if is_named else None


def may_still_speak(policy: AccessPolicy, people: People, sender_id: str, chat_id: str) -> bool:
    """Whether one who once wrote in this chat is still somebody who may, whatever kind of chat it is."""
    knock = Knock(sender_id, chat_id, is_private=False)
    is_trusted = policy.allow_from.names(Sender.of(chat_id))
    return is_trusted or _let_in(people, [policy.allow_from, policy.direct_allow_from], knock) is not None


def _refused(channel: str, who: Sender, key: str) -> str:
    if not who.key:
        return f"{channel}: a sender without an id that could be listed is not heard"
    return f"{channel}: {_quoted(who.id)} may not speak here; to let them in: {_paste(channel, key, who)}"


def _paste(channel: str, key: str, who: Sender) -> str:
    return f"channels.{channel}.{key}: [{_quoted(who.id)}]"


def _quoted(text: str) -> str:
    """As JSON has it, so that it can be pasted, and so that no id writes a line of its own into the log."""
    return json.dumps(text)


def _keys_of(section: object, key: str) -> dict[str, Any]:
    """A section by its keys in camelCase."""
    told = section.model_dump(by_alias=True) if isinstance(section, BaseModel) else section
    if not isinstance(told, Mapping):
        raise ConfigError(f"{key} must be an object with keys such as allowFrom.")
    return {camel(name): value for name, value in told.items()}


def _senders(told: object, key: str) -> SenderList:
    entries = [] if told is None else told
    if not isinstance(entries, list) or not all(type(entry) in (str, int) for entry in entries):
        raise ConfigError(f'{key} must be a list of ids, such as ["12345"]. Write one, or [] for who paired alone.')
    return SenderList(str(entry) for entry in entries)


def _word(told: object, known: Sequence[str], key: str) -> Any:
    """One of the words, the first where none is said."""
    if told is not None and told not in known:
        raise ConfigError(f"{key} must be one of: {', '.join(known)}.")
    return told or known[0]


class Access:
    """The door of one channel."""

    def __init__(self, policy: AccessPolicy, store: PairingStore, clock: Clock | None = None) -> None:
        self.policy = policy
        """May be replaced while messages come: the next one goes by it."""
        self._store = store
        self._clock = clock or SystemClock()
        self._knocks = Knocks(self._clock)
        self._said: dict[str, float] = {}

    def knows(self, sender_id: str) -> bool:
        """Whether this sender may speak privately, without asking for a code."""
        return isinstance(self._decided(Knock(sender_id, sender_id, is_private=True)), Allowed)

    def is_owner(self, sender_id: str) -> bool:
        """Whether this sender is an owner of the channel."""
        return self._store.people(self.policy.channel).role_of(Sender.of(sender_id)) is Role.OWNER

    async def decide(self, knock: Knock) -> Decision:
        """Whether this message is heard. Never raises; a stranger's code is on the disk when it is returned.

        Writes the reason of a refusal to the log itself, each once in ten minutes. Cancelled, a code may be out that
        nobody was shown; it goes by itself.
        """
        judged = self._decided(knock)
        decision = await self._offered(knock, judged) if isinstance(judged, Stranger) else judged
        if not isinstance(decision, Allowed) and decision.reason and self._is_news(decision.reason):
            log.info("%s", decision.reason)
        return decision

    def _decided(self, knock: Knock) -> Allowed | Stranger | Silent:
        return decide(self.policy, self._store.people(self.policy.channel), knock)

    async def _offered(self, knock: Knock, stranger: Stranger) -> Pair | Silent:
        """A code, if one is due to this sender and there is room for it."""
        channel, who = self.policy.channel, Sender.of(knock.sender_id)
        if self._store.problem:
            return Silent(f"{stranger.reason} (nobody can pair: {self._store.problem})")
        out = self._store.waiting(channel)
        if any(one.is_of(who) for one in out) or not self._knocks.may_ask(who.key):
            return Silent(stranger.reason)
        if len(out) >= MOST_PENDING:  # a crowd costs no lock and no thread
            return Silent(f"{stranger.reason} (no code was given: too many are out; see `nanobot pairing list`)")
        try:
            asked = await finish(asyncio.to_thread(self._store.ask, channel, who))
        except StorageError as error:
            return Silent(f"{stranger.reason} (nobody can pair: {error})")
        if asked is None:  # somebody was quicker
            return Silent(stranger.reason)
        self._knocks.got_code(who.key)
        has_owner = bool(self._store.people(channel).owners)
        text = _invitation(asked.code, has_owner=has_owner)
        return Pair(asked.code, text, f"{stranger.reason} (a code was given; see `nanobot pairing list`)")

    def _is_news(self, reason: str) -> bool:
        now = self._clock.monotonic()
        self._said = {line: until for line, until in self._said.items() if until > now}
        if reason in self._said or len(self._said) >= MOST_LINES:
            return False
        self._said[reason] = now + VALID_S
        return True


def _invitation(code: str, *, has_owner: bool) -> str:
    """What a stranger is told."""
    owner = "" if has_owner else f"\nIf this bot is yours: nanobot pairing approve {code} --owner"
    return (
        f"I talk only with people my owner knows. Your code is {code}, good for {VALID_S // 60} minutes.\n"
        f"My owner lets you in with: nanobot pairing approve {code}{owner}\n"
        "Then write to me again."
    )
