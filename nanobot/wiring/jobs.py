"""The calendar of a bot, and what its tool may do with it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.pipeline.left_over import is_taken_on
from nanobot.agent.tools.cron import Jobs
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.session.manager import SessionManager
from nanobot.utils.clock import Clock

if TYPE_CHECKING:
    from nanobot.cron.service import CronService


def cron_service(
    config: Config, workspace: Path, places: Places, clock: Clock, sessions: SessionManager
) -> "CronService":
    """The jobs of the workspace, with what an earlier release kept elsewhere. None runs before it is started."""
    from nanobot.cron.service import CronService  # 40 ms that a turn without a calendar need not wait
    from nanobot.cron.targets import KnownChannels

    service = CronService(
        workspace / "cron" / "jobs.json",
        clock=clock,
        timezone=config.agents.defaults.timezone,
        targets=KnownChannels(config.channels.switched_on()),
        was_begun=lambda job, due: is_taken_on(places.turns, sessions, job.run_session, due.run_id),
    )
    service.adopt(places.old_jobs)
    return service


def cron_desk(service: "CronService", may_speak: Callable[[str, str, str], bool]) -> Jobs:
    """The jobs as a model may change them."""
    from nanobot.cron.desk import CronDesk

    return CronDesk(service, may_speak)
