"""Config changes while the gateway runs: applied where that is safe, told where they need a restart."""

from typing import Any

from nanobot.channels.evidence import ChannelState
from tests.gateway.conftest import OpenGateway
from tests.gateway.toy import soon


async def test_who_may_speak_changes_at_once_without_a_new_connection(running: OpenGateway):
    async with running("hello") as here:
        channel = here.gateway.roster.manager.get("toy")
        here.change(lambda config: config["channels"]["toy"].update(allowFrom=["7", "9"]))
        await soon(lambda: channel is not None and channel.is_allowed("9"))

        here.toy.write("hi", sender="9", chat="9", message_id="1")
        await soon(lambda: here.toy.got("9"))

        assert here.gateway.roster.manager.get("toy") is channel


async def test_a_channel_is_switched_off_and_on_and_the_others_stay(running: OpenGateway, caplog):
    def switch(on: bool) -> Any:
        return lambda config: config["channels"]["toy"].update(enabled=on)

    async with running("hello") as here:
        manager = here.gateway.roster.manager
        plush = manager.get("plush")

        here.change(switch(False))
        await soon(lambda: manager.get("toy") is None)
        here.toy.write("hi", message_id="1")
        here.change(switch(True))
        await soon(here.toy.got)

        assert manager.get("plush") is plush
        assert here.toy.got() == ["hello"]


async def test_a_config_that_is_deleted_switches_nothing_off(running: OpenGateway):
    async with running("hello") as here:
        members = here.gateway.members.known
        (here.home / "config.json").unlink()
        await soon(lambda: "is gone" in (members["config"].problem() or ""))
        here.toy.write("hi", message_id="1")
        await soon(here.toy.got)

        assert here.toy.got() == ["hello"]


async def test_new_settings_begin_a_channel_anew_and_what_waited_for_it_is_sent(running: OpenGateway, tmp_path):
    async with running() as here:
        bus, manager = here.gateway.runtime.bus, here.gateway.roster.manager
        old = manager.get("toy")
        assert old is not None
        (here.toy.folder / "cut").touch()
        await soon(lambda: old.evidence.state is ChannelState.DOWN)
        from nanobot.bus.events import OutboundMessage

        receipt = await bus.publish_outbound(OutboundMessage("toy", "7", "patience"))
        here.change(lambda config: config["channels"]["toy"].update(folder=str(tmp_path / "elsewhere")))

        assert await receipt.wait()
        assert "patience" in (tmp_path / "elsewhere" / "sent.jsonl").read_text()


async def test_what_is_shown_of_the_work_changes_at_once(running: OpenGateway):
    from nanobot.testing import calls

    step = calls(("list_dir", {"path": "."}), text="Let me look.")
    async with running(step, "done", step, "done") as here:
        here.toy.write("hi", message_id="1")
        await soon(lambda: "done" in here.toy.got())
        here.change(lambda config: config["channels"].update(sendProgress=False))
        await soon(lambda: here.gateway.runtime.config.channels.send_progress is False)
        here.toy.write("hi", message_id="2")
        await soon(lambda: here.toy.got().count("done") == 2)

    assert here.toy.got().count("Let me look.") == 1


async def test_the_log_names_what_needs_a_restart_and_a_file_that_does_not_parse_changes_nothing(
    running: OpenGateway, caplog
):
    async with running("hello") as here:
        here.change(lambda config: config.update(agents={"defaults": {"model": "other"}}))
        await soon(lambda: "agents.defaults.model" in caplog.text)
        (here.home / "config.json").write_text("{")
        await soon(lambda: "what was before still holds" in caplog.text)
        report = await here.gateway.watch.report()
        here.toy.write("hi", message_id="1")
        await soon(here.toy.got)

    assert "for agents.defaults.model restart with `nanobot gateway restart`" in caplog.text
    assert [problem.split(":")[0] for problem in report["problems"]] == ["config"]
