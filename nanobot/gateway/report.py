"""The health report of the gateway, for `/health`, `nanobot gateway status` and `nanobot channels status`.

`metrics` has the same in the text format of Prometheus (prometheus.io/docs/instrumenting/exposition_formats).
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nanobot import __version__
from nanobot.bus.journal import Journal, JournalCounts
from nanobot.channels.status import ChannelState
from nanobot.errors import StorageError
from nanobot.gateway.channels import GatewayChannels
from nanobot.gateway.loop_monitor import LoopMonitor
from nanobot.gateway.notices import DeadLetters
from nanobot.gateway.supervisor import TaskSupervisor
from nanobot.runtime.build import Runtime
from nanobot.security.secrets import redact_named

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


class HealthReporter:
    """Builds the report."""

    def __init__(
        self,
        runtime: Runtime,
        journal: Journal,
        channels: GatewayChannels,
        supervisor: TaskSupervisor,
        loop_monitor: LoopMonitor,
        dead_letters: DeadLetters,
    ) -> None:
        self.runtime = runtime
        self.journal = journal
        self.channels = channels
        self.supervisor = supervisor
        self.loop_monitor = loop_monitor
        self.dead_letters = dead_letters
        self.began_at = runtime.clock.monotonic()
        self._counts = JournalCounts()
        self._counted_at = -COUNTED_S
        self._journal_error = ""

    async def report(self) -> Report:
        """The report as JSON data. Never raises."""
        runtime, status, free = self.runtime, self.runtime.status, _free_bytes(self.runtime.data_dir)
        now = runtime.clock.monotonic()
        if now - self._counted_at >= COUNTED_S:
            self._counted_at, self._journal_error = now, ""
            try:
                self._counts = await self.journal.counts()
            except StorageError as error:
                self._journal_error = str(error)
        channels: dict[str, dict[str, Any]] = {
            name: status.to_json() for name, status in self.channels.statuses().items()
        }
        for name, problem in self.channels.broken.items():
            channels[name] = {"state": ChannelState.FAILED.value, "lastError": problem}
        members = {name: task.to_json() for name, task in self.supervisor.tasks.items()}
        for row in (*channels.values(), *members.values()):
            row["lastError"] = redact_named(row["lastError"])
        problems = [redact_named(problem) for problem in self._problems(free)]
        return {
            "status": "failing" if problems else "ok",
            "problems": problems,
            "version": __version__,
            "pid": os.getpid(),
            "uptimeS": round(now - self.began_at, 1),
            "channels": channels,
            "members": members,
            "messages": {
                "received": self._counts.received,
                "answered": self._counts.answered,
                "refused": self._counts.refused,
                "queued": self._counts.queued,
                "waitingOut": self._counts.waiting_out,
                "failedOut": self._counts.failed_out,
            },
            "deadLetters": self.dead_letters.count,
            "runningTurns": len(status.running),
            "plugins": [redact_named(trouble) for trouble in runtime.troubles()],
            "modelError": redact_named(status.model_error or ""),
            "loopLagS": round(self.loop_monitor.lag_s, 4),
            "diskFreeBytes": free,
            "lastError": redact_named(status.last_error or ""),
        }

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
    channels, members, messages = report["channels"].items(), report["members"].items(), report["messages"]
    lines: list[str] = []

    def add(name: str, kind: str, text: str, value: object = None, **by: Mapping[str, object]) -> None:
        """Add a metric with one value, or with one for each value of a label. Values of None are left out."""
        lines.extend((f"# HELP nanobot_{name} {text}", f"# TYPE nanobot_{name} {kind}"))
        rows = [("", value)]
        rows += [(f'{{{label}="{_escape(key)}"}}', row[key]) for label, row in by.items() for key in row]
        lines.extend(f"nanobot_{name}{labels} {float(v):g}" for labels, v in rows if isinstance(v, int | float))

    add("healthy", "gauge", "Whether nothing is wrong.", report["status"] == "ok")
    add("uptime_seconds", "gauge", "Since the gateway started.", report["uptimeS"])
    is_up = {name: status["state"] == ChannelState.UP for name, status in channels}
    add("channel_up", "gauge", "Whether a channel is connected.", channel=is_up)
    for word, text in (("received", "received from"), ("sent", "sent to"), ("failed", "refused by")):
        counts = {name: status.get(word, 0) for name, status in channels}
        add(f"channel_{word}_total", "counter", f"Messages {text} a channel since the start.", channel=counts)
    silent = {name: status.get("silentS") for name, status in channels}
    add("channel_silent_seconds", "gauge", "Since a channel's platform last answered.", channel=silent)
    states = {state: messages[state] for state in ("received", "answered", "refused", "queued")}
    add("messages", "gauge", "Messages in the journal: received = answered + refused + queued.", state=states)
    outbound = {"waiting": messages["waitingOut"], "failed": messages["failedOut"]}
    add("outbound", "gauge", "Outbound messages that wait for their platform, and undeliverable ones.", state=outbound)
    add("member_up", "gauge", "Whether it runs.", member={name: status["alive"] for name, status in members})
    restarts = {name: status["restarts"] for name, status in members}
    add("member_restarts_total", "counter", "How often it was restarted.", member=restarts)
    ticks = {name: status["lastTickS"] for name, status in members}
    add("member_tick_age_seconds", "gauge", "Since its last activity.", member=ticks)
    add("model_up", "gauge", "Whether the last model call was answered.", not report["modelError"])
    add("running_turns", "gauge", "Turns in progress.", report["runningTurns"])
    add("loop_lag_seconds", "gauge", "The event loop's worst delay in a minute.", report["loopLagS"])
    add("disk_free_bytes", "gauge", "Free space on the data folder's disk.", report["diskFreeBytes"])
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
