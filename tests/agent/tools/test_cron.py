"""The `cron` tool in whole turns: a reminder by words alone, and very many jobs."""

import json
from pathlib import Path

from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.cron.schedule import to_ms
from nanobot.cron.service import CronService
from nanobot.cron.types import CronSchedule
from nanobot.messages.types import Origin
from nanobot.runtime.build import build_runtime
from nanobot.testing import calls, open_bot


async def test_a_reminder_is_set_by_words_alone_without_a_model(tmp_path: Path):
    telegram = {"enabled": True, "token": "1:a", "allowFrom": ["5"]}
    config = Config.model_validate({"channels": {"telegram": telegram}})
    async with build_runtime(config, data_dir=tmp_path, workspace=tmp_path / "workspace", environ={}) as runtime:
        words = "remind me in 20 minutes to stretch"
        asked = InboundMessage.from_owner("telegram", "5", words, session_key="telegram:5", origin=Origin.USER)
        before = to_ms(asked.timestamp.astimezone())

        result = await runtime.loop.run_turn(asked)

    (job,) = CronService(tmp_path / "workspace" / "cron" / "jobs.json").list_jobs()
    assert f"The reminder is set. Job {job.id}" in result.text
    assert "runs once at" in result.text and "Next run" not in result.text
    assert "No gateway is running" in result.text
    assert (job.payload.message, job.payload.channel, job.payload.to) == ("stretch", "telegram", "5")
    assert 0 <= (job.state.next_run_at_ms or 0) - before - 1_199_000 < 30_000


async def test_owner_is_asked_before_there_are_very_many_jobs(tmp_path: Path):
    add = calls(("cron", {"action": "add", "message": "x", "every_seconds": 60}))
    async with open_bot(tmp_path, add, "The last one.", add, "I could not.") as bot:
        path = bot.workspace / "cron" / "jobs.json"
        service = CronService(path)
        service.add_job("0", CronSchedule("every", every_ms=60_000), "Look")
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored["jobs"] = [{**stored["jobs"][0], "id": f"job{number:02}"} for number in range(49)]
        path.write_text(json.dumps(stored), encoding="utf-8")
        await bot.say("one more job")
        await bot.say("and one more")

    assert "needs the owner's yes" in str(bot.provider.requests[-1][-1]["content"])
    assert len(service.list_jobs()) == 50
