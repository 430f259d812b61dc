"""What looks at the agent's work after it: what calls wrote is read back, where the config wants it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.config.schema import Config
from nanobot.security.paths import PathPolicy

if TYPE_CHECKING:
    from nanobot.agent.tools.read_back import ReadBack, StoredJob


def read_back_of(config: Config, workspace: Path, paths: PathPolicy) -> "ReadBack | None":
    """Who sees the calls through that write; None where `review` is off."""
    if not config.agents.defaults.review:
        return None
    from nanobot.agent.tools.read_back import ReadBack, StoredJob  # who does not want it does not wait for it

    def stored_jobs() -> "Mapping[str, StoredJob]":
        from nanobot.cron.store import CronStore  # as above, and of the disk: no service's memory has a part in it

        jobs = CronStore(workspace / "cron" / "jobs.json").load().jobs
        return {job.id: StoredJob(job.payload.message, job.enabled, job.state.next_run_at_ms) for job in jobs}

    return ReadBack(paths, stored_jobs)
