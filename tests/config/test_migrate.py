"""Old shapes, told in today's words."""

import pytest

from nanobot.config.legacy import migrate


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"tools": {"exec": {"restrictToWorkspace": True}}}, {"tools": {"exec": {}, "restrictToWorkspace": True}}),
        ({"tools": {"exec": {"restrict_to_workspace": True}}}, {"tools": {"exec": {}, "restrictToWorkspace": True}}),
        (
            {"tools": {"exec": {"restrictToWorkspace": True}, "restrict_to_workspace": False}},
            {"tools": {"exec": {}, "restrict_to_workspace": False}},
        ),
        (
            {"agents": {"defaults": {"sessionTtlMinutes": 5}}},
            {"agents": {"defaults": {"idleCompactAfterMinutes": 5}}},
        ),
        ({"tools": {"exec": 5}}, {"tools": {"exec": 5}}),
        ({"tools": [], "agents": None}, {"tools": [], "agents": None}),
    ],
)
def test_what_moved_is_found_at_its_new_place(old, new):
    before = repr(old)

    assert migrate(old) == new
    assert repr(old) == before
