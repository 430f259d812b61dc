"""/cron: jobs in a chat, by name."""

from pathlib import Path

from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.types import Origin, Provenance
from nanobot.providers.base import LLMResponse
from nanobot.testing import Bot, calls, open_bot

TELEGRAM = Config.model_validate({"channels": {"telegram": {"enabled": True, "token": "1:a", "allowFrom": ["*"]}}})


async def from_telegram(
    bot: Bot, text: str, chat: str, provenance: Provenance = Provenance.PERSON, origin: Origin = Origin.USER
) -> str:
    message = InboundMessage("telegram", "5", chat, text, origin=origin, provenance=provenance)
    return (await bot.run_turn(message)).text


def reminder(name: str) -> LLMResponse:
    return calls(("cron", {"action": "add", "name": name, "message": "Water the plants", "cron_expr": "0 18 * * *"}))


async def test_cron_lists_and_changes_jobs_by_name(bot: Bot):
    bot.provider.script(reminder("plants"), "I will remind you.")
    await bot.say("remind me")

    listed = await bot.say("/cron")
    disabled = await bot.say("/cron disable Plants")
    unknown = await bot.say("/cron remove cats")
    asked = await bot.say("/cron run plants")
    removed = await bot.say("/cron remove plants")

    assert '"plants"' in listed
    assert "disabled" in disabled
    assert '"plants"' in unknown
    assert "within seconds" in asked
    assert "removed" in removed
    assert "no jobs" in await bot.say("/cron list")
    assert "/cron remove" in await bot.say("/cron remove")


async def test_a_chat_sees_its_own_jobs_and_only_an_owner_changes_them(tmp_path: Path):
    async with open_bot(tmp_path, config=TELEGRAM) as bot:
        for chat, name in (("-100", "ours"), ("-200", "theirs")):
            bot.provider.script(reminder(name), "Noted.")
            await from_telegram(bot, "remind us", chat, Provenance.OWNER)

        listed = await from_telegram(bot, "/cron", "-100")
        by_guest = await from_telegram(bot, "/cron remove ours", "-100")
        by_job = await from_telegram(bot, "/cron remove ours", "-100", Provenance.OWNER, Origin.CRON)
        of_another_chat = await from_telegram(bot, "/cron remove theirs", "-100", Provenance.OWNER)
        all_jobs = await bot.say("/cron")
        by_owner = await from_telegram(bot, "/cron remove ours", "-100", Provenance.OWNER)

    assert '"ours"' in listed
    assert "theirs" not in listed
    assert "Only an owner" in by_guest
    assert "Only an owner" in by_job
    assert "There is no job" in of_another_chat
    assert '"ours"' in all_jobs
    assert '"theirs"' in all_jobs
    assert "removed" in by_owner
