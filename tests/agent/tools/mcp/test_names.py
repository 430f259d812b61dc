import re

from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.tools.mcp.listing import tool_names


def test_plain_names_are_put_together():
    assert tool_names("time", ["get_current_time"]) == {"get_current_time": "mcp_time_get_current_time"}


def test_two_that_would_meet_are_told_apart_the_same_way_every_time():
    names = tool_names("s", ["a.b", "a_b", "a/b"])

    assert names == tool_names("s", ["a/b", "a_b", "a.b"])
    assert names["a_b"] == "mcp_s_a_b"
    assert len(set(names.values())) == 3


def test_a_name_another_server_has_is_not_given_again():
    (name,) = tool_names("a", ["b_c"], frozenset({"mcp_a_b_c"})).values()

    assert name != "mcp_a_b_c"


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=90), unique=True, max_size=8))
def test_every_name_is_one_that_providers_take(server: str, tools: list[str]):
    names = tool_names(server, tools)

    assert list(names) == tools
    assert len(set(names.values())) == len(tools)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names.values())
