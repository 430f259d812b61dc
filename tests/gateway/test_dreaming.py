"""Dream lives in the gateway as one timer, where its owner has not switched it off."""

from nanobot.agent.memory.store import MemoryStore
from tests.support.eventually import eventually
from tests.support.memory import archive_queue, saving
from tests.support.running_gateway import OpenGateway


async def test_it_is_a_member_that_asks_nothing_of_a_model_at_a_start_unless_it_is_switched_off(running: OpenGateway):
    async with running() as it:
        assert ("dream" in it.gateway.supervisor.tasks, it.model.requests) == (True, [])
    async with running(agents={"defaults": {"dream": {"enabled": False}}}) as it:
        assert "dream" not in it.gateway.supervisor.tasks


async def test_what_an_earlier_life_put_away_is_remembered_though_nobody_speaks(running: OpenGateway):
    async with running("Fine.") as it:
        it.toy.write("I like plums", message_id="1")
        await eventually(lambda: it.toy.got() == ["Fine."])
        it.toy.write("/new", message_id="2")
        await eventually(lambda: archive_queue(it.home))

    async with running(saving("Spoke of plums.", "- Likes plums.")) as it:
        memory = MemoryStore(it.home / "workspace")
        await eventually(lambda: "Likes plums" in memory.read_long_term())
