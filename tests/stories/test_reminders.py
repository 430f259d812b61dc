"""A reminder over Telegram: its buttons, and the words that do the same, through a restart and without a model."""

import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nanobot.config.loader import load_config
from nanobot.cron.schedule import to_ms
from nanobot.cron.service import CronService
from nanobot.cron.types import CronJob, CronSchedule
from nanobot.errors import BudgetExceededError
from nanobot.gateway.service import Gateway, Options, open_gateway
from nanobot.providers.errors import AuthenticationError
from nanobot.testing import ScriptedProvider
from nanobot.testing.platform import Shown
from tests.fakes.platform_telegram import ANNA, ZOE, TelegramPlatform
from tests.fakes.telegram import TOKEN
from tests.support.eventually import eventually
from tests.support.toy_gateway import free_port, written

BUTTONS = ["Done", "Snooze 10 min", "Tomorrow"]


@pytest.fixture
async def telegram(tmp_path: Path) -> AsyncIterator[TelegramPlatform]:
    (folder := tmp_path / "platform").mkdir()
    async with TelegramPlatform(folder).open() as platform:
        yield platform


@asynccontextmanager
async def gateway(telegram: TelegramPlatform, home: Path, *script: Any) -> AsyncIterator[tuple[Gateway, CronService]]:
    """A whole gateway on this Telegram, which Anna owns and where Zoe may write."""
    home.mkdir(exist_ok=True)
    channel = {"enabled": True, "token": TOKEN, "apiBase": telegram.server.url, "allowFrom": [str(ANNA), str(ZOE)]}
    written(home / "config.json", {"channels": {"telegram": channel}, "gateway": {"port": free_port()}})
    written(home / "pairing.json", {"owners": {"telegram": [str(ANNA)]}, "approved": {"telegram": [str(ANNA)]}})
    async with open_gateway(
        load_config(home / "config.json"),
        data_dir=home,
        workspace=home / "workspace",
        options=Options(turns_s=0.05),
        provider=ScriptedProvider(*script),
        environ={},
    ) as opened:
        yield opened, opened.runtime.cron()


def add(jobs: CronService, text: str, chat: int = ANNA) -> CronJob:
    """A reminder that is due in a moment, as the agent makes it."""
    at = to_ms(datetime.now(UTC)) + 200
    return jobs.add_job(
        text, CronSchedule("at", at_ms=at), text, deliver=True, channel="telegram", to=str(chat), delete_after_run=True
    )


async def shows(telegram: TelegramPlatform, words: str, chat: int = ANNA) -> Shown:
    return await eventually(lambda: next((one for one in telegram.shown(str(chat)) if words in one.text), None))


def waiting(jobs: CronService) -> list[CronJob]:
    return jobs.list_jobs()


async def test_a_reminder_is_snoozed_by_its_button_after_a_restart_and_comes_again_without_a_model(
    telegram: TelegramPlatform, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    async with gateway(telegram, tmp_path / "home", "Please call Ann.") as (_, jobs):
        add(jobs, "Call Ann")
        reminder = await shows(telegram, "Please call Ann.")
        await eventually(lambda: not waiting(jobs))

    async with gateway(telegram, tmp_path / "home") as (_, jobs):
        await telegram.press_button(reminder.id, "Snooze 10 min")
        await shows(telegram, "Snoozed until")
        (snoozed,) = waiting(jobs)
        in_ten_minutes = to_ms(datetime.now(UTC)) + 600_000
        jobs.request_run(snoozed.id)
        await eventually(lambda: [one.text for one in telegram.shown(str(ANNA))].count("Please call Ann.") == 2)
        await eventually(lambda: f"job 'Call Ann' ({snoozed.id}) sent again" in caplog.text)

    assert reminder.buttons == BUTTONS
    assert abs((snoozed.state.next_run_at_ms or 0) - in_ten_minutes) < 60_000
    assert telegram.shown(str(ANNA))[-1].buttons == BUTTONS


async def test_a_word_right_after_a_reminder_answers_it_and_any_other_time_goes_to_the_model(
    telegram: TelegramPlatform, tmp_path: Path
):
    async with gateway(telegram, tmp_path / "home", "Tea!", "Coffee!", "Gladly.", "Well done.") as (_, jobs):
        add(jobs, "Make tea")
        await shows(telegram, "Tea!")
        await telegram.says("Tomorrow")
        await shows(telegram, "Snoozed until")
        (snoozed,) = waiting(jobs)
        add(jobs, "Make coffee")
        await shows(telegram, "Coffee!")
        await telegram.says("thanks")
        await shows(telegram, "Gladly.")
        await telegram.says("done")
        await shows(telegram, "Well done.")

    assert snoozed.payload.message == "Tea!"
    due = datetime.fromtimestamp((snoozed.state.next_run_at_ms or 0) / 1000)
    assert (due.date(), due.hour) == ((datetime.now() + timedelta(days=1)).date(), 9)
    assert [job.id for job in waiting(jobs)] == [snoozed.id]


async def test_a_reminder_that_no_model_worked_on_is_not_tried_again_once_it_is_done(
    telegram: TelegramPlatform, tmp_path: Path
):
    async with gateway(telegram, tmp_path / "home", AuthenticationError()) as (_, jobs):
        job = add(jobs, "Water the plants")
        reminder = await shows(telegram, "Water the plants")
        await eventually(lambda: (found := jobs.get_job(job.id)) and found.runs.retry)
        await telegram.press_button(reminder.id, "Done")
        await shows(telegram, "Done: Water the plants")

        assert jobs.get_job(job.id) is None


async def test_a_reminder_that_came_is_no_longer_listed(telegram: TelegramPlatform, tmp_path: Path):
    async with gateway(telegram, tmp_path / "home", "Tea!") as (_, jobs):
        add(jobs, "Make tea")
        await shows(telegram, "Tea!")
        await eventually(lambda: not waiting(jobs))
        await telegram.says("/cron")
        await shows(telegram, "There are no jobs")


async def test_a_retry_that_waits_survives_a_restart(telegram: TelegramPlatform, tmp_path: Path):
    async with gateway(telegram, tmp_path / "home", AuthenticationError()) as (_, jobs):
        job = add(jobs, "Water the plants")
        await shows(telegram, "Water the plants")
        retry = await eventually(lambda: found.runs.retry if (found := jobs.get_job(job.id)) else None)

    assert retry.started_ms - to_ms(datetime.now(UTC)) > 200_000
    with closing(sqlite3.connect(tmp_path / "home" / "state" / "nanobot.db")) as db, db:
        db.execute("UPDATE cron_runs SET started_ms = at_ms WHERE outcome = 'waiting'")
    async with gateway(telegram, tmp_path / "home", "The plants are watered.") as (_, jobs):
        await shows(telegram, "The plants are watered.")

    outcomes = [(row.outcome, row.trigger) for row in jobs.history(job.id)]
    assert outcomes == [("failed", "schedule"), ("ran", "retry")]


async def test_somebody_elses_reminder_is_theirs_to_answer(telegram: TelegramPlatform, tmp_path: Path):
    async with gateway(telegram, tmp_path / "home", "Tea!") as (_, jobs):
        job = add(jobs, "Make tea")
        await shows(telegram, "Tea!")
        await telegram.says(f"/cron done {job.id}", sender=str(ZOE), chat=str(ZOE))
        await shows(telegram, "answered before, or", ZOE)

        assert (jobs.get_job(job.id) or job).runs.delivered is not None


async def test_a_reminder_reminds_also_when_the_spending_limit_is_reached(telegram: TelegramPlatform, tmp_path: Path):
    limit = BudgetExceededError("The daily limit is reached.")
    async with gateway(telegram, tmp_path / "home", limit) as (_, jobs):
        add(jobs, "Water the plants")
        reminder = await shows(telegram, "Water the plants")

    assert "The daily limit is reached." in reminder.text
    assert reminder.buttons == BUTTONS
