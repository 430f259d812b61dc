"""Only what asks for something is a task; the shipped template asks for nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.heartbeat.service import parse_tasks

NO_TASKS = {
    "nothing": "",
    "headings": "# Heartbeat\n\n## Open\n\n### Later\n",
    "a comment": "# Heartbeat\n<!-- - [ ] not this\nnor this -->\n",
    "a comment that never ends": "# Heartbeat\n<!-- - water the plants\n",
    "empty boxes": "- [ ]\n* [ ] \n1. []\n-\n",
    "ticked boxes": "## Open\n- [x] water the plants\n- [X] feed the cat\n  with the good food\n",
    "completed": "## Completed\n- water the plants\nAll of it.\n### March\n- feed the cat\n",
    "a preface above sections": "# Heartbeat\n\nThis is looked at now and then.\n\n## Open\n\n## Completed\n- old\n",
    "rules": "---\n***\n",
}


@pytest.mark.parametrize("text", NO_TASKS.values(), ids=NO_TASKS.keys())
def test_a_file_that_asks_for_nothing_has_no_tasks(text):
    assert parse_tasks(text) == []


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("- [ ] water the plants", ["water the plants"]),
        ("- water the plants\n- feed the cat", ["water the plants", "feed the cat"]),
        ("1. one\n2) two", ["one", "two"]),
        ("# Heartbeat\n\nLook at my mail every morning.", ["Look at my mail every morning."]),
        ("## Open\nLook at my mail\nand tell me.\n\n- [x] old\n- [ ] new", ["Look at my mail\nand tell me.", "new"]),
        ("- [ ] water\n  - the roses\n  - the beans", ["water\n- the roses\n- the beans"]),
        ("## Completed\n- old\n## Open\n- new", ["new"]),
        ("# Heartbeat\ncheck the mail\n## Completed\n- old", ["check the mail"]),
        ("- [ ] 浇花\r\n- [ ] 喂猫\r\n", ["浇花", "喂猫"]),
        ("- [link](http://a.org) look", ["[link](http://a.org) look"]),
    ],
)
def test_items_and_paragraphs_are_tasks(text, tasks):
    assert parse_tasks(text) == tasks


@given(st.text(alphabet="-*[]x #<!>\n1.ab ", max_size=200))
def test_any_text_is_read_and_ticking_all_off_leaves_nothing_but_paragraphs(text):
    for task in parse_tasks(text):
        assert task.strip()
        assert "<!--" not in task
