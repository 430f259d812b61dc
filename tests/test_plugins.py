"""Names at the doors lead to what they name, or say where the way ends."""

import pytest

from nanobot.errors import PluginError
from nanobot.plugins import entry_points, load


def test_a_name_is_loaded():
    assert load("nanobot.plugins:load") is load


@pytest.mark.parametrize(
    "target", ["", "nanobot", ":load", "nanobot.plugins:", "no.such:Thing", "nanobot.plugins:Nothing"]
)
def test_a_name_that_leads_nowhere_is_named(target):
    with pytest.raises(PluginError, match=target or "''"):
        load(target)


def test_a_group_that_nobody_offers_is_empty():
    assert list(entry_points("nanobot.nobody")) == []
