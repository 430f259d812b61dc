"""The health report of the gateway, for `/health`, `nanobot gateway status` and `nanobot channels status`.

`metrics` has its numbers for Prometheus (prometheus.io/docs/instrumenting/exposition_formats).
"""

import asyncio
import os
import re
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nanobot import __version__
from nanobot.bus.journal import JournalCounts
from nanobot.channels.status import ChannelState
from nanobot.errors import StorageError
from nanobot.gateway.channels import GatewayChannels
from nanobot.gateway.process import tell_service_manager
from nanobot.gateway.supervisor import TaskSupervisor
from nanobot.runtime.build import Runtime
from nanobot.security.secrets import redact_named

BEAT_S = 1.0
GONE_S = 45.0
"""How long a channel may be disconnected before the report is failing."""
LAG_S = 5.0
SILENT_S = 10.0
"""How long the measuring of the event loop may be silent."""
LEAST_FREE = 100 * 1024 * 1024
"""Free bytes on the disk below which writes of journal and sessions are about to fail."""
COUNTED_S = 5.0
"""How long the counts of the journal are cached."""

Report = dict[str, Any]
_UPPER = re.compile("(?=[A-Z])")


class HealthReporter:
    """Builds the report, and measures the event loop's delay."""

    def __init__(self, runtime: Runtime, channels: GatewayChannels, supervisor: TaskSupervisor) -> None:
        self.began_at = self._beat_at = runtime.clock.monotonic()
        self._delays: deque[float] = deque(maxlen=60)
        """Of the event loop in the last minute, in seconds."""
        self._runtime = runtime
        self._channels = channels
        self._supervisor = supervisor
        self.dead_letters = channels.dead_letters
        self._counts = JournalCounts()
        self._counted_at = -COUNTED_S
        self._journal_error = ""

    @property
    def silent_s(self) -> float:
        """Seconds since the event loop was measured last."""
        return self._runtime.clock.monotonic() - self._beat_at

    async def monitor_loop(self) -> None:
        """Measure the event loop's delay once a second, and ping the watchdog of systemd: a blocked event loop stops
        the pings, so that systemd restarts the gateway.
        """
        while True:
            self._beat_at = self._runtime.clock.monotonic()
            tell_service_manager("WATCHDOG=1")
            await asyncio.sleep(BEAT_S)
            self._delays.append(max(0.0, self.silent_s - BEAT_S))

    async def report(self) -> Report:
        """The report as JSON data. Never raises."""
        runtime, status, free = self._runtime, self._runtime.status, _free_bytes(self._runtime.data_dir)
        now, journal = runtime.clock.monotonic(), runtime.bus.journal
        if journal is not None and now - self._counted_at >= COUNTED_S:
            self._counted_at, self._journal_error = now, ""
            try:
                self._counts = await journal.counts()
            except StorageError as error:
                self._journal_error = str(error)
        counts = self._counts
        channels = {name: channel.to_json() for name, channel in self._channels.statuses().items()}
        for name, problem in self._channels.broken.items():
            channels[name] = {"state": ChannelState.FAILED.value, "lastError": problem}
        members = {name: task.to_json() for name, task in self._supervisor.tasks.items()}
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
                "received": counts.received,
                "answered": counts.answered,
                "refused": counts.refused,
                "queued": counts.queued,
                "waitingOut": counts.waiting_out,
                "failedOut": counts.failed_out,
            },
            "deadLetters": self.dead_letters.count,
            "runningTurns": len(status.running),
            "plugins": [redact_named(problem) for problem in runtime.loop.commands.problems()],
            "modelError": redact_named(status.model_error or ""),
            "loopLagS": round(max(self._delays, default=0.0), 4),
            "diskFreeBytes": free,
            "lastError": redact_named(status.last_error or ""),
        }

    def _problems(self, free: int | None) -> Iterator[str]:
        """Yield what a person should look at, one line each."""
        yield from (f"{name}: {problem}" for name, problem in self._channels.broken.items())
        for name, status in self._channels.statuses().items():
            if status.state is ChannelState.FAILED:
                yield f"{name}: {status.last_error}"
            elif status.gone_s > GONE_S:
                yield f"{name}: not connected for {status.gone_s:.0f} s ({status.last_error or status.state})"
            if status.undelivered:
                yield f"{name}: the last message was not delivered: {status.undelivered}"
        yield from (f"{name}: {task.trouble}" for name, task in self._supervisor.tasks.items() if task.trouble)
        if self._runtime.status.model_error is not None:
            yield f"model: the last turn got no answer: {self._runtime.status.model_error}"
        if self._journal_error:
            yield self._journal_error
        lag_s = max(self._delays, default=0.0)
        if self.silent_s > SILENT_S or lag_s > LAG_S:
            yield f"the event loop was blocked for {max(self.silent_s, lag_s):.1f} s"
        if free is not None and free < LEAST_FREE:
            yield f"only {free // 1024 // 1024} MB are free on the disk of {self._runtime.data_dir}: free some space"


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def metrics(report: Report) -> str:
    """The numbers of a report in the text format of Prometheus, such as `nanobot_channel_sent{channel="slack"} 7`."""
    numbers: list[tuple[str, str, object]] = [
        ("healthy", "", report["status"] == "ok"),
        ("model_up", "", not report["modelError"]),
        *((key, "", value) for key, value in report.items() if key != "pid"),
        *(("messages", f'{{state="{state}"}}', count) for state, count in report["messages"].items()),
    ]
    for kind in ("channel", "member"):
        for name, row in report[f"{kind}s"].items():
            escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            is_up = row["state"] == ChannelState.UP if kind == "channel" else row["alive"]
            numbers += [
                (f"{kind}_{key}", f'{{{kind}="{escaped}"}}', value) for key, value in (row | {"up": is_up}).items()
            ]
    lines = [
        f"nanobot_{_UPPER.sub('_', name).lower()}{labels} {float(value):g}\n"
        for name, labels, value in numbers
        if isinstance(value, int | float)
    ]
    return "".join(sorted(lines))  # the lines of one metric have to stand together
