"""Names of hosts are looked up beside the event loop."""

import pytest

from nanobot.net.egress import local_address_for, resolve_host


async def test_a_name_of_this_machine_has_addresses_ipv4_first():
    assert (await resolve_host("localhost", 80, 5))[0] == "127.0.0.1"


@pytest.mark.parametrize("name", ["nobody.invalid", "x" * 64, "a..b"])
async def test_a_name_that_nobody_has_is_an_error(name):
    with pytest.raises((OSError, TimeoutError)):
        await resolve_host(name, 80, 2)


async def test_nobody_waits_longer_than_told():
    with pytest.raises(TimeoutError):
        await resolve_host("localhost", 80, 0)


def test_this_machine_speaks_to_itself_from_itself():
    assert local_address_for("127.0.0.1") == "127.0.0.1"
    assert local_address_for("255.255.255.255") is None
