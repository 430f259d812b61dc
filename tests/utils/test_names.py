"""Names of hosts are looked up beside the event loop."""

import pytest

from nanobot.utils.names import addresses_of, own_address_towards


async def test_a_name_of_this_machine_has_addresses_ipv4_first():
    assert (await addresses_of("localhost", 80, 5))[0] == "127.0.0.1"


@pytest.mark.parametrize("name", ["nobody.invalid", "x" * 64, "a..b"])
async def test_a_name_that_nobody_has_is_an_error(name):
    with pytest.raises((OSError, TimeoutError)):
        await addresses_of(name, 80, 2)


async def test_nobody_waits_longer_than_told():
    with pytest.raises(TimeoutError):
        await addresses_of("localhost", 80, 0)


def test_this_machine_speaks_to_itself_from_itself():
    assert own_address_towards("127.0.0.1") == "127.0.0.1"
    assert own_address_towards("255.255.255.255") is None
