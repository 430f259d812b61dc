"""How the gateway is, from evidence alone: what came and went, what beats, what waits. Nothing here is a promise.

`Watch.report` is what `/health`, `nanobot gateway status` and `nanobot channels status` show; `metrics` says the same
in the text format of Prometheus (prometheus.io/docs/instrumenting/exposition_formats).
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nanobot import __version__
from nanobot.bus.journal import Journal, JournalCounts
from nanobot.channels.evidence import ChannelState
from nanobot.config.paths import Places
from nanobot.errors import StorageError
from nanobot.gateway.members import Member, Members
from nanobot.gateway.pulse import Pulse
from nanobot.gateway.roster import Roster
from nanobot.utils.clock import Clock

GONE_S = 45.0
"""How long a channel may be out of reach before the gateway is not well."""
LAG_S = 5.0
SILENT_S = 10.0
"""How long the pulse may be silent."""
LEAST_FREE = 100 * 1024 * 1024
"""Bytes on the disk; with less, journal and sessions are about to be refused."""
COUNTED_S = 5.0
"""How long the counts of the journal are good: who asks often does not keep it from its work."""

Report = dict[str, Any]


@dataclass(slots=True)
class Watch:
    """Where the evidence is."""

    places: Places
    clock: Clock
    journal: Journal
    roster: Roster
    members: Members
    pulse: Pulse
    running: Callable[[], int]
    """How many turns run."""
    last_error: Callable[[], str | None]
    model_error: Callable[[], str | None]
    """Why the last turn that asked a model has no answer; None where a model answered since."""
    dead_letters: Callable[[], int]
    redact: Callable[[str], str]
    plugins: Callable[[], list[str]]
    """What is wrong with plugins and hooks; the gateway is well all the same."""
    began: float
    _counts: JournalCounts | None = None
    _counted: float = 0.0
    _refusal: str = ""

    async def report(self) -> Report:
        """All of it, as JSON has it. Never raises."""
        counts = await self._count()
        free = _free(self.places)
        channels = {name: self._channel(name) for name in [*self.roster.names, *self.roster.broken]}
        members = {name: self._member(member) for name, member in self.members.known.items()}
        problems = [self.redact(problem) for problem in self._problems(free)]
        report: Report = {
            "status": "failing" if problems else "ok",
            "problems": problems,
            "version": __version__,
            "pid": os.getpid(),
            "uptimeS": round(self.clock.monotonic() - self.began, 1),
            "channels": channels,
            "members": members,
            "messages": {
                "received": counts.received,
                "answered": counts.answered,
                "refused": counts.refused,
                "queued": counts.queued,
                "waitingOut": counts.waiting_out,
                "failedOut": counts.failed_out,
            },
            "deadLetters": self.dead_letters(),
            "runningTurns": self.running(),
            "plugins": [self.redact(trouble) for trouble in self.plugins()],
            "modelError": self.redact(self.model_error() or ""),
            "loopLagS": round(self.pulse.lag_s, 4),
            "diskFreeBytes": free,
            "lastError": self.redact(self.last_error() or ""),
        }
        return report

    async def _count(self) -> JournalCounts:
        if self._counts is None or self.clock.monotonic() - self._counted > COUNTED_S:
            try:
                self._counts, self._refusal = await self.journal.counts(), ""
            except StorageError as error:
                self._refusal = str(error)
            self._counted = self.clock.monotonic()
        return self._counts or JournalCounts()

    def _channel(self, name: str) -> dict[str, Any]:
        channel = self.roster.manager.get(name)
        if channel is None:
            return {"state": ChannelState.FAILED.value, "lastError": self.redact(self.roster.broken.get(name, ""))}
        told = channel.evidence.to_json()
        return {**told, "lastError": self.redact(told["lastError"])}

    def _member(self, member: Member) -> dict[str, Any]:
        told = member.to_json()
        return {**told, "lastError": self.redact(told["lastError"])}

    def _problems(self, free: int | None) -> Iterator[str]:
        """What a person should look at, each in a line."""
        yield from (f"{name}: {problem}" for name, problem in self.roster.broken.items())
        for name, evidence in self.roster.evidence().items():
            gone_s = self.pulse.gone_s(name)
            if evidence.state is ChannelState.FAILED:
                yield f"{name}: {evidence.last_error}"
            elif evidence.state is not ChannelState.UP and gone_s > GONE_S:
                yield f"{name}: not connected for {gone_s:.0f} s ({evidence.last_error or evidence.state})"
            if why := self.pulse.refused(name):
                yield f"{name}: the last message was not taken: {why}"
        for name, member in self.members.known.items():
            problem = member.problem()
            if problem:
                yield f"{name}: {problem}"
            elif not member.alive and not member.ended:
                yield f"{name}: broke and is begun anew soon: {member.last_error}"
            elif member.stale_s and (silent_s := member.silent_s() or 0.0) > member.stale_s:
                yield f"{name}: no sign of life for {silent_s:.0f} s"
        if (why := self.model_error()) is not None:
            yield f"model: the last turn has no answer: {why}"
        if self._refusal:
            yield self._refusal
        if self.pulse.silent_s > SILENT_S or self.pulse.lag_s > LAG_S:
            yield f"the event loop was held up for {max(self.pulse.silent_s, self.pulse.lag_s):.1f} s"
        if free is not None and free < LEAST_FREE:
            yield f"{free // 1024 // 1024} MB are left on the disk of {self.places.data}: free some space"


def _free(places: Places) -> int | None:
    try:
        return shutil.disk_usage(places.data).free
    except OSError:
        return None


def metrics(report: Report) -> str:
    """The report for Prometheus."""
    return "".join(_families(report))


def _families(report: Report) -> Iterator[str]:
    channels: dict[str, dict[str, Any]] = report["channels"]
    members: dict[str, dict[str, Any]] = report["members"]
    messages: dict[str, int] = report["messages"]
    yield _family("healthy", "gauge", "Whether nothing is wrong.", [({}, report["status"] == "ok")])
    yield _family("uptime_seconds", "gauge", "Since the gateway started.", [({}, report["uptimeS"])])
    yield _family(
        "channel_up",
        "gauge",
        "Whether a channel is connected.",
        [({"channel": name}, told["state"] == ChannelState.UP) for name, told in channels.items()],
    )
    for word, text in (("received", "came from"), ("sent", "were taken by"), ("failed", "were refused by")):
        rows = [({"channel": name}, told.get(word, 0)) for name, told in channels.items()]
        yield _family(f"channel_{word}_total", "counter", f"Messages that {text} a channel since the start.", rows)
    silent = [({"channel": name}, told["silentS"]) for name, told in channels.items() if "silentS" in told]
    yield _family("channel_silent_seconds", "gauge", "Since a channel's platform last gave a sign.", silent)
    yield _family(
        "messages",
        "gauge",
        "What became of the messages in the journal: received = answered + refused + queued.",
        [({"state": state}, messages[state]) for state in ("received", "answered", "refused", "queued")],
    )
    yield _family(
        "outbound",
        "gauge",
        "Messages out that wait for their platform, and those it would not have.",
        [({"state": "waiting"}, messages["waitingOut"]), ({"state": "failed"}, messages["failedOut"])],
    )
    yield _family("member_up", "gauge", "Whether it lives.", [({"member": n}, t["alive"]) for n, t in members.items()])
    yield _family(
        "member_restarts_total",
        "counter",
        "How often it was begun anew.",
        [({"member": name}, told["restarts"]) for name, told in members.items()],
    )
    ticks = [({"member": name}, told["lastTickS"]) for name, told in members.items() if told["lastTickS"] is not None]
    yield _family("member_tick_age_seconds", "gauge", "Since it last did anything.", ticks)
    answers = "Whether a model answered when it was asked last."
    yield _family("model_up", "gauge", answers, [({}, not report["modelError"])])
    yield _family("running_turns", "gauge", "Turns under way.", [({}, report["runningTurns"])])
    yield _family("loop_lag_seconds", "gauge", "The event loop's worst delay in a minute.", [({}, report["loopLagS"])])
    if report["diskFreeBytes"] is not None:
        yield _family("disk_free_bytes", "gauge", "Room on the data folder's disk.", [({}, report["diskFreeBytes"])])


def _family(name: str, kind: str, text: str, rows: list[tuple[dict[str, str], float]]) -> str:
    lines = [f"# HELP nanobot_{name} {text}", f"# TYPE nanobot_{name} {kind}"]
    for labels, value in rows:
        named = ",".join(f'{label}="{_escaped(told)}"' for label, told in labels.items())
        lines.append(f"nanobot_{name}{f'{{{named}}}' if named else ''} {float(value):g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
