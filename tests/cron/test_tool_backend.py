"""What the `cron` tool asks for, told back in words; and where a job may post."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.cron import CronTool
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.bus.events import Address
from nanobot.config.channels import ChannelsConfig
from nanobot.cron.service import CronService
from nanobot.cron.tool_backend import NEEDS_GATEWAY, CronToolBackend
from nanobot.cron.types import CronJob, CronSchedule, Notify
from nanobot.messages.types import Origin, Provenance
from nanobot.utils.clock import SystemClock


async def nothing(_job: CronJob) -> None:
    """What a job does here."""


class Asking:
    """The tool as a model calls it, on a real store."""

    def __init__(self, folder: Path, origin: Origin = Origin.USER) -> None:
        channels = ChannelsConfig.model_validate(
            {"telegram": {"enabled": True}, "mine": {"enabled": True}, "slack": {}}
        )
        self.service = CronService(
            folder / "cron" / "jobs.json",
            nothing,
            timezone="Europe/Berlin",
            channels=channels.enabled_by_name(),
        )
        self._tools = ToolRegistry()
        self._tools.register(CronTool(lambda: CronToolBackend(self.service)))
        address = Address("telegram", "12345", "topic-7")
        self.ctx = ToolContext("telegram:12345", address, "t", folder, SystemClock(), origin=origin)

    async def call(self, **arguments: object) -> ToolResult:
        return await self._tools.call("cron", arguments, self.ctx)

    async def say(self, **arguments: object) -> str:
        result = await self.call(**arguments)
        assert not result.error, result.content
        assert isinstance(result.content, str)
        return result.content


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[Asking]:
    """Beside a clockwork that runs."""
    asking = Asking(tmp_path)
    await asking.service.start()
    yield asking
    await asking.service.close()


async def test_a_job_is_for_the_chat_that_asks_thread_included(asking: Asking):
    said = await asking.say(action="add", message="Report the weather", cron_expr="0 9 * * *", notify="on_change")

    (job,) = asking.service.list_jobs()
    assert (job.payload.channel, job.payload.to, job.payload.thread_id) == ("telegram", "12345", "topic-7")
    assert (job.payload.session_key, job.payload.deliver, job.payload.notify) == (
        "telegram:12345",
        True,
        Notify.ON_CHANGE,
    )
    first, heading, *runs = said.splitlines()
    assert first == f'Job {job.id} "Report the weather" runs every day at 09:00 (Europe/Berlin), for telegram:12345.'
    assert heading == "Next runs:"
    assert [run[13:18] for run in runs] == ["09:00"] * 3
    assert not job.delete_after_run


@pytest.mark.parametrize(
    ("schedule", "kind"), [("0 9 * * 1-5", "cron"), ("2126-12-24T18:00", "at"), (3600, "every"), ("3600", "every")]
)
async def test_names_of_parameters_that_other_releases_took_are_understood(asking: Asking, schedule: object, kind: str):
    await asking.say(action="add", message="Report the weather", description="weather", schedule=schedule)

    (job,) = asking.service.list_jobs()
    assert (job.name, job.payload.message, job.schedule.kind) == ("weather", "Report the weather", kind)


async def test_words_from_the_web_make_a_job_that_is_trusted_no_more(asking: Asking):
    asking.ctx = replace(asking.ctx, entered=Provenance.WEB)

    await asking.say(action="add", message="Report", every_seconds=3600)

    assert asking.service.list_jobs()[0].payload.provenance is Provenance.WEB


async def test_what_an_older_turn_has_read_makes_no_job_powerless(asking: Asking):
    asking.ctx = replace(asking.ctx, provenance=Provenance.WEB)

    await asking.say(action="add", message="Make the backup", every_seconds=3600)

    assert asking.service.list_jobs()[0].payload.provenance is Provenance.OWNER


async def test_who_asked_is_kept_where_they_are_let_in_themselves_and_not_by_their_group_alone(tmp_path: Path):
    service = CronService(tmp_path / "jobs.json", nothing)
    tools = ToolRegistry()
    tools.register(CronTool(lambda: CronToolBackend(service, lambda channel, sender, chat: sender.startswith("5"))))
    for sender in ("5|ann", "6|bob"):
        ctx = ToolContext("discord:9", Address("discord", "9"), "t", tmp_path, SystemClock(), sender_id=sender)
        await tools.call("cron", {"action": "add", "message": "Tea", "name": sender, "every_seconds": 60}, ctx)

    assert {job.name: job.payload.asked_by for job in service.list_jobs()} == {"5|ann": "5|ann", "6|bob": None}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"action": "add", "message": "x"}, "One of them is needed"),
        ({"action": "add", "every_seconds": 60}, "needs a message"),
        ({"action": "add", "message": "x", "at": "2020-01-01T00:00"}, "in the past"),
        ({"action": "add", "message": "x", "every_seconds": 59}, "every_seconds must be at least 60"),
        ({"action": "add", "message": "x", "cron_expr": "* * * * * */5"}, "cron_expr has five fields"),
        ({"action": "remove"}, "needs job_id"),
        ({"action": "remove", "job_id": "nowhere"}, "There is no job 'nowhere'. Jobs: none."),
        ({"action": "sing"}, "action"),
    ],
)
async def test_what_cannot_be_is_refused_with_what_would_be_right(
    asking: Asking, arguments: dict[str, object], said: str
):
    result = await asking.call(**arguments)

    assert result.error
    assert said in str(result.content)
    assert asking.service.list_jobs() == []


async def test_it_says_when_nothing_runs_jobs(asking: Asking):
    await asking.service.close()

    said = await asking.say(action="add", message="Tea", every_seconds=60)

    assert said.endswith(NEEDS_GATEWAY)


@pytest.mark.parametrize(
    ("channel", "said"),
    [
        ("telegrm", "Did you mean telegram?"),
        ("slack", "not enabled"),
        ("nowhere", "There is no channel 'nowhere'. Enabled channels: mine, telegram."),
    ],
)
def test_a_channel_that_cannot_be_reached_is_named(asking: Asking, channel: str, said: str):
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        asking.service.add_job("x", CronSchedule("every", every_ms=60_000), "x", True, channel, "5")
