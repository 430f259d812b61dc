"""The health report of the gateway, for `/health`, `nanobot gateway status` and `nanobot channels status`.

`metrics` has the same in the text format of Prometheus (prometheus.io/docs/instrumenting/exposition_formats).
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobot import __version__
from nanobot.bus.journal import Journal, JournalCounts
from nanobot.channels.status import ChannelState
from nanobot.errors import StorageError
from nanobot.gateway.channels import GatewayChannels
from nanobot.gateway.dead_letters import DeadLetters
from nanobot.gateway.loop_monitor import LoopMonitor
from nanobot.gateway.supervisor import SupervisedTask, TaskSupervisor
from nanobot.runtime.build import Runtime
from nanobot.security.redaction import redact_known

GONE_S = 45.0
"""How long a channel may be disconnected before the report is failing."""
LAG_S = 5.0
SILENT_S = 10.0
"""How long the loop monitor may be silent."""
LEAST_FREE = 100 * 1024 * 1024
"""Free bytes on the disk below which writes of journal and sessions are about to fail."""
COUNTED_S = 5.0
"""How long the counts of the journal are cached."""

Report = dict[str, Any]


@dataclass(slots=True)
class HealthReporter:
    """Builds the report."""

    runtime: Runtime
    journal: Journal
    channels: GatewayChannels
    supervisor: TaskSupervisor
    loop_monitor: LoopMonitor
    dead_letters: DeadLetters
    began: float
    _counts: JournalCounts | None = None
    _counted_at: float = 0.0
    _journal_error: str = ""

    async def report(self) -> Report:
        """The report as JSON data. Never raises."""
        counts = await self._count()
        runtime, status, free = self.runtime, self.runtime.status, _free_bytes(self.runtime.data_dir)
        channels = {name: self._channel(name) for name in [*self.channels.names, *self.channels.broken]}
        members = {name: self._member(task) for name, task in self.supervisor.tasks.items()}
        problems = [self._redact(problem) for problem in self._problems(free)]
        return {
            "status": "failing" if problems else "ok",
            "problems": problems,
            "version": __version__,
            "pid": os.getpid(),
            "uptimeS": round(runtime.clock.monotonic() - self.began, 1),
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
            "deadLetters": self.dead_letters.count,
            "runningTurns": len(status.running),
            "plugins": [self._redact(trouble) for trouble in runtime.troubles()],
            "modelError": self._redact(status.model_error or ""),
            "loopLagS": round(self.loop_monitor.lag_s, 4),
            "diskFreeBytes": free,
            "lastError": self._redact(status.last_error or ""),
        }

    async def _count(self) -> JournalCounts:
        now = self.runtime.clock.monotonic()
        if self._counts is None or now - self._counted_at > COUNTED_S:
            try:
                self._counts, self._journal_error = await self.journal.counts(), ""
            except StorageError as error:
                self._journal_error = str(error)
            self._counted_at = now
        return self._counts or JournalCounts()

    def _channel(self, name: str) -> dict[str, Any]:
        channel = self.channels.manager.get(name)
        if channel is None:
            return {"state": ChannelState.FAILED.value, "lastError": self._redact(self.channels.broken.get(name, ""))}
        status = channel.status.to_json()
        return {**status, "lastError": self._redact(status["lastError"])}

    def _member(self, task: SupervisedTask) -> dict[str, Any]:
        status = task.to_json()
        return {**status, "lastError": self._redact(status["lastError"])}

    def _redact(self, text: str) -> str:
        return self.runtime.toolbox.services.redactor.text(redact_known(text))

    def _problems(self, free: int | None) -> Iterator[str]:
        """Yield what a person should look at, one line each."""
        yield from (f"{name}: {problem}" for name, problem in self.channels.broken.items())
        for name, status in self.channels.statuses().items():
            gone_s = self.loop_monitor.gone_s(name)
            if status.state is ChannelState.FAILED:
                yield f"{name}: {status.last_error}"
            elif status.state is not ChannelState.UP and gone_s > GONE_S:
                yield f"{name}: not connected for {gone_s:.0f} s ({status.last_error or status.state})"
            if why := self.loop_monitor.refused(name):
                yield f"{name}: the last message was not delivered: {why}"
        for name, task in self.supervisor.tasks.items():
            problem = task.problem()
            if problem:
                yield f"{name}: {problem}"
            elif not task.alive and not task.ended:
                yield f"{name}: failed and restarts soon: {task.last_error}"
            elif task.stale_s and (silent_s := task.silent_s() or 0.0) > task.stale_s:
                yield f"{name}: no activity for {silent_s:.0f} s"
        if (why := self.runtime.status.model_error) is not None:
            yield f"model: the last turn got no answer: {why}"
        if self._journal_error:
            yield self._journal_error
        if self.loop_monitor.silent_s > SILENT_S or self.loop_monitor.lag_s > LAG_S:
            yield f"the event loop was blocked for {max(self.loop_monitor.silent_s, self.loop_monitor.lag_s):.1f} s"
        if free is not None and free < LEAST_FREE:
            yield f"only {free // 1024 // 1024} MB are free on the disk of {self.runtime.data_dir}: free some space"


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def metrics(report: Report) -> str:
    """Format a report for Prometheus."""
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
        [({"channel": name}, status["state"] == ChannelState.UP) for name, status in channels.items()],
    )
    for word, text in (("received", "received from"), ("sent", "sent to"), ("failed", "refused by")):
        rows = [({"channel": name}, status.get(word, 0)) for name, status in channels.items()]
        yield _family(f"channel_{word}_total", "counter", f"Messages {text} a channel since the start.", rows)
    silent = [({"channel": name}, status["silentS"]) for name, status in channels.items() if "silentS" in status]
    yield _family("channel_silent_seconds", "gauge", "Since a channel's platform last answered.", silent)
    yield _family(
        "messages",
        "gauge",
        "Messages in the journal: received = answered + refused + queued.",
        [({"state": state}, messages[state]) for state in ("received", "answered", "refused", "queued")],
    )
    yield _family(
        "outbound",
        "gauge",
        "Outbound messages that wait for their platform, and undeliverable ones.",
        [({"state": "waiting"}, messages["waitingOut"]), ({"state": "failed"}, messages["failedOut"])],
    )
    yield _family("member_up", "gauge", "Whether it runs.", [({"member": n}, t["alive"]) for n, t in members.items()])
    yield _family(
        "member_restarts_total",
        "counter",
        "How often it was restarted.",
        [({"member": name}, status["restarts"]) for name, status in members.items()],
    )
    ticks = [
        ({"member": name}, status["lastTickS"]) for name, status in members.items() if status["lastTickS"] is not None
    ]
    yield _family("member_tick_age_seconds", "gauge", "Since its last activity.", ticks)
    answers = "Whether the last model call was answered."
    yield _family("model_up", "gauge", answers, [({}, not report["modelError"])])
    yield _family("running_turns", "gauge", "Turns in progress.", [({}, report["runningTurns"])])
    yield _family("loop_lag_seconds", "gauge", "The event loop's worst delay in a minute.", [({}, report["loopLagS"])])
    if report["diskFreeBytes"] is not None:
        yield _family(
            "disk_free_bytes", "gauge", "Free space on the data folder's disk.", [({}, report["diskFreeBytes"])]
        )


def _family(name: str, kind: str, text: str, rows: list[tuple[dict[str, str], float]]) -> str:
    lines = [f"# HELP nanobot_{name} {text}", f"# TYPE nanobot_{name} {kind}"]
    for labels, value in rows:
        pairs = ",".join(f'{label}="{_escape(content)}"' for label, content in labels.items())
        lines.append(f"nanobot_{name}{f'{{{pairs}}}' if pairs else ''} {float(value):g}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
