"""Dream lives in the gateway as one timer, where its owner has not switched it off."""

from tests.gateway.conftest import OpenGateway


async def test_it_is_a_member_that_asks_nothing_of_a_model_at_a_start(running: OpenGateway):
    async with running() as it:
        assert "dream" in it.gateway.members.known
        assert it.model.requests == []


async def test_switched_off_it_is_none(running: OpenGateway):
    async with running(agents={"defaults": {"dream": {"enabled": False}}}) as it:
        assert "dream" not in it.gateway.members.known
