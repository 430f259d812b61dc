"""Decides whether a sender may talk to the bot: allowed, offered a pairing code, or ignored.

`decide` is the policy, a pure function of the config, the paired users and the message. `AccessControl` adds the
pairing store, the codes and the log line that says how to allow a sender. Unknown senders in groups are ignored.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from nanobot.channels.incoming import Incoming
from nanobot.config.channels import GroupPolicy
from nanobot.config.keypath import camel
from nanobot.errors import ConfigError, StorageError
from nanobot.messages.types import Provenance
from nanobot.pairing.senders import Sender, SenderList
from nanobot.pairing.store import VALID_S, PairedUsers, PairingStore, Pending, Role
from nanobot.utils.aio import finish
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.clock import Clock, SystemClock

_GROUP_POLICIES = ("mention", "open", "allowlist")
_DIRECT_POLICIES = ("open", "allowlist")
_GROUP_LISTS = ("allowChannels", "groupAllowFrom")
MAX_LOG_LINES = 100
"""Most refusals logged in ten minutes."""
_LONGEST_WAIT_S = 86_400
"""Longest wait of a sender between two codes; each is twice as long as the one before."""
_MAX_SENDERS = 1_000
"""Senders whose codes are counted; beyond that the one with the oldest request is forgotten."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Allowed:
    """The sender may write to the bot."""

    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Unknown:
    """Not allowed, but may pair. `reason` is a log line with the config entry that would allow the sender."""

    reason: str


@dataclass(frozen=True, slots=True)
class PairingOffered:
    """Not allowed; send `text`, once, to the private chat."""

    code: str
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """No answer. `reason` is a log line; empty for group messages that do not concern the bot."""

    reason: str = ""


Decision = Allowed | PairingOffered | Ignored


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    channel: str
    allow_from: SenderList = field(default_factory=SenderList)
    """Senders, and groups in which everybody is allowed."""
    group_policy: GroupPolicy = "mention"
    """mention: messages that address the bot; open: every message; allowlist: every message in listed groups."""
    groups: SenderList = field(default_factory=SenderList)
    """The groups the bot answers in; empty means all, except with the policy allowlist."""
    groups_key: str = "allowFrom"
    """The config key that lists groups."""
    direct_enabled: bool = True
    direct_policy: Literal["open", "allowlist"] = "open"
    """allowlist: in private chats only senders in `direct_allow_from` or paired; unknown senders get no code."""
    direct_allow_from: SenderList = field(default_factory=SenderList)

    @classmethod
    def of(cls, channel: str, section: BaseModel | Mapping[str, Any]) -> "AccessPolicy":
        """Read a section under `channels`, also a plugin's. Raises ConfigError for invalid values."""
        key = f"channels.{channel}"
        settings = _keys_of(section, key)
        direct = _keys_of(settings.get("dm") or {}, f"{key}.dm")
        lists = {name: settings[name] for name in _GROUP_LISTS if name in settings}
        return cls(
            channel,
            _parse_senders(settings.get("allowFrom"), f"{key}.allowFrom"),
            _parse_choice(settings.get("groupPolicy"), _GROUP_POLICIES, f"{key}.groupPolicy"),
            SenderList(
                entry for name, value in lists.items() for entry in _parse_senders(value, f"{key}.{name}").entries
            ),
            next(iter(lists), "allowFrom"),
            direct.get("enabled", True) is True,
            _parse_choice(direct.get("policy"), _DIRECT_POLICIES, f"{key}.dm.policy"),
            _parse_senders(direct.get("allowFrom"), f"{key}.dm.allowFrom"),
        )


def decide(policy: AccessPolicy, paired: PairedUsers, incoming: Incoming) -> Allowed | Unknown | Ignored:
    return (_decide_private if incoming.is_private else _decide_group)(policy, paired, incoming)


def _decide_private(policy: AccessPolicy, paired: PairedUsers, incoming: Incoming) -> Allowed | Unknown | Ignored:
    channel, sender = policy.channel, Sender.of(incoming.sender_id)
    if not policy.direct_enabled:
        return Ignored(f"{channel}: ignored sender {_quote(sender.id)}: channels.{channel}.dm.enabled is false")
    is_open = policy.direct_policy == "open"
    lists = [policy.direct_allow_from, policy.allow_from] if is_open else [policy.direct_allow_from]
    allowed = _match_lists(paired, lists, incoming)
    if allowed is not None:
        return allowed
    if not incoming.is_verified:
        return Ignored(f"{channel}: ignored sender {_quote(sender.id)}: nothing verifies that they sent this")
    reason = _refusal(channel, sender, "allowFrom" if is_open else "dm.allowFrom")
    return Unknown(reason) if is_open and sender.key else Ignored(reason)


def _decide_group(policy: AccessPolicy, paired: PairedUsers, incoming: Incoming) -> Allowed | Ignored:
    channel, sender = policy.channel, Sender.of(incoming.sender_id)
    chats = [Sender.of(chat_id) for chat_id in (incoming.chat_id, *incoming.parent_ids)]
    is_trusted = any(policy.allow_from.matches(chat) for chat in chats)
    is_listed = is_trusted or any(policy.groups.admits(chat) for chat in chats)
    if not is_listed and (policy.groups or policy.group_policy == "allowlist"):
        entry = _config_entry(channel, policy.groups_key, chats[0])
        return Ignored(
            f"{channel}: ignored group {_quote(chats[0].id)} (not in {policy.groups_key}). To allow: {entry}"
        )
    if policy.group_policy == "mention" and not incoming.is_mentioned:
        return Ignored()
    allowed = _match_lists(paired, [policy.allow_from], incoming)
    if allowed is None and is_trusted:
        allowed = Allowed(Provenance.PERSON)
    return allowed or Ignored(_refusal(channel, sender, "allowFrom"))


def _match_lists(paired: PairedUsers, lists: Sequence[SenderList], incoming: Incoming) -> Allowed | None:
    """Match the sender against the paired users and the lists. An unverified sender matches only `*`."""
    ids = (incoming.sender_id, *incoming.alternate_ids) if incoming.is_verified else ()
    senders = [Sender.of(sender_id) for sender_id in ids]
    roles = {paired.role_of(sender) for sender in senders}
    if Role.OWNER in roles:
        return Allowed(Provenance.OWNER)
    if Role.PERSON in roles or any(entries.everybody for entries in lists):
        return Allowed(Provenance.PERSON)
    is_listed = any(entries.matches(sender) for entries in lists for sender in senders)
    return Allowed(Provenance.PERSON) if is_listed else None


def is_still_allowed(policy: AccessPolicy, paired: PairedUsers, sender_id: str, chat_id: str) -> bool:
    """Whether a sender who once wrote in this chat, private or group, is still allowed."""
    incoming = Incoming(sender_id, chat_id, is_private=False)
    is_trusted = policy.allow_from.matches(Sender.of(chat_id))
    return is_trusted or _match_lists(paired, [policy.allow_from, policy.direct_allow_from], incoming) is not None


def _refusal(channel: str, sender: Sender, key: str) -> str:
    if not sender.key:
        return f"{channel}: ignored a sender without a usable id"
    entry = _config_entry(channel, key, sender)
    return f"{channel}: blocked sender {_quote(sender.id)} (not in {key}). To allow: {entry}"


def _config_entry(channel: str, key: str, sender: Sender) -> str:
    return f"channels.{channel}.{key}: [{_quote(sender.id)}]"


def _quote(text: str) -> str:
    """As a JSON string, for pasting into the config; an id cannot inject a log line of its own."""
    return json.dumps(text)


def _keys_of(section: object, key: str) -> dict[str, Any]:
    """The section with its keys in camelCase."""
    settings = section.model_dump(by_alias=True) if isinstance(section, BaseModel) else section
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{key} must be an object with keys such as allowFrom.")
    return {camel(name): value for name, value in settings.items()}


def _parse_senders(value: object, key: str) -> SenderList:
    entries = [] if value is None else value
    if not isinstance(entries, list) or not all(type(entry) in (str, int) for entry in entries):
        raise ConfigError(f'{key} must be a list of ids, such as ["12345"]; [] allows paired senders only.')
    return SenderList(str(entry) for entry in entries)


def _parse_choice(value: object, choices: Sequence[str], key: str) -> Any:
    """Return the value, or the first choice if there is none."""
    if value is not None and value not in choices:
        raise ConfigError(f"{key} must be one of: {', '.join(choices)}.")
    return value or choices[0]


class AccessControl:
    """Decides who may talk to the bot on one channel, and gives out pairing codes."""

    def __init__(
        self,
        policy: AccessPolicy,
        store: PairingStore,
        clock: Clock | None = None,
        on_code: Callable[[Pending], None] = lambda entry: None,
    ) -> None:
        """`on_code` is called with each new code; it must not block or raise."""
        self.policy = policy
        """May be replaced at any time; applies from the next message on."""
        self._store = store
        self._on_code = on_code
        self._clock = clock or SystemClock()
        self._codes_given: dict[str, tuple[int, float]] = {}
        """How many codes a sender got, and when the next one is allowed, by key. In memory: a restart resets it."""
        self._logged: dict[str, float] = {}

    def is_allowed(self, sender_id: str) -> bool:
        """Whether this sender is allowed in a private chat. Offers no code."""
        return isinstance(self._decide(Incoming(sender_id, sender_id, is_private=True)), Allowed)

    def is_owner(self, sender_id: str) -> bool:
        return self._store.people(self.policy.channel).role_of(Sender.of(sender_id)) is Role.OWNER

    async def decide(self, incoming: Incoming) -> Decision:
        """Decide on a message. Never raises; an offered code is on disk when this returns.

        Logs each reason of a refusal once in ten minutes. If cancelled, a code that nobody was shown may remain
        until it expires.
        """
        verdict = self._decide(incoming)
        decision = await self._offer_pairing(incoming, verdict) if isinstance(verdict, Unknown) else verdict
        if not isinstance(decision, Allowed) and decision.reason:
            now = self._clock.monotonic()
            self._logged = {line: until for line, until in self._logged.items() if until > now}
            if decision.reason not in self._logged and len(self._logged) < MAX_LOG_LINES:
                self._logged[decision.reason] = now + VALID_S
                log.info("%s", decision.reason)
        return decision

    def _decide(self, incoming: Incoming) -> Allowed | Unknown | Ignored:
        return decide(self.policy, self._store.people(self.policy.channel), incoming)

    async def _offer_pairing(self, incoming: Incoming, unknown: Unknown) -> PairingOffered | Ignored:
        """Create a code, unless the sender has one, asks too often, or too many are pending."""
        channel, sender = self.policy.channel, Sender.of(incoming.sender_id)
        if self._store.problem:
            return Ignored(f"{unknown.reason} (nobody can pair: {self._store.problem})")
        pending = self._store.pending(channel)
        count, allowed_at = self._codes_given.get(sender.key, (0, 0.0))
        if any(entry.is_from(sender) for entry in pending) or self._clock.monotonic() < allowed_at:
            return Ignored(unknown.reason)
        if not self._store.has_room(pending):  # before taking a lock and a thread, so that a crowd costs little
            return Ignored(f"{unknown.reason} (no code given: too many are pending; see `nanobot pairing list`)")
        try:
            asking = asyncio.to_thread(self._store.ask, channel, sender, incoming.display_name, incoming.chat_id)
            entry = await finish(asking)
        except StorageError as error:
            return Ignored(f"{unknown.reason} (nobody can pair: {error})")
        if entry is None:  # another message was faster
            return Ignored(unknown.reason)
        # The first wait is as long as a code is valid, so that a person who missed it gets a second one at once, while
        # a crowd cannot keep using up the limited number of codes.
        wait_s = min(VALID_S * 2 ** min(count, 20), _LONGEST_WAIT_S)
        put_bounded(self._codes_given, sender.key, (count + 1, self._clock.monotonic() + wait_s), _MAX_SENDERS)
        self._on_code(entry)
        approve = f"nanobot pairing approve {entry.code}"
        has_owner = bool(self._store.people(channel).owners)
        claim = "" if has_owner else f"If this bot is yours: {approve} --owner\n"
        text = (
            f"This is a private bot. Your code is {entry.code}, valid for {VALID_S // 60} minutes.\n"
            f"Its owner can let you in with: {approve}\n{claim}Then send your message again."
        )
        to = f" to {entry.name}" if entry.name else ""
        reason = f"{unknown.reason} (a code was given{to}; see `nanobot pairing list`)"
        return PairingOffered(entry.code, text, reason)
