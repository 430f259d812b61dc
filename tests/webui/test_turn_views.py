"""The two reducers of turn events, in Python and in the page, agree on the vectors of turn_views.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import event_from_json
from nanobot.agent.feed import Changed, Feed, TurnStarted, TurnView
from tests.support.browser import Tabs
from tests.support.running_gateway import OpenGateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("browser")]

VECTORS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("turn_views.json").read_text(encoding="utf-8"))

RUN = """async (vectors) => {
  const base = document.querySelector("meta[name=base]").content;
  const { newTurnView, applyEvent } = await import(`${base}/app/turn_view.js`);
  return vectors.map(({ events }) => {
    const view = newTurnView({ turn_id: "t", seq: -1 }, "web:1", "web");
    for (const event of events) applyEvent(view, { turn_id: "t", ...event });
    for (const event of events) applyEvent(view, { turn_id: "t", ...event }); // seen already
    return view.parts.map(({ turn_id, ...part }) => part);
  });
}"""


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
async def test_the_view_in_python_is_as_the_vectors_say(vector):
    started = TurnStarted(turn_id="t", text="", message_id=None, sender_id="", origin="user", media=[], at="")
    view = TurnView(started, "web:1", "web")
    for payload in vector["events"]:
        event = event_from_json({"turn_id": "t", **payload})
        assert event is not None
        view.apply(event)

    parts = [{name: value for name, value in part.items() if name != "turn_id"} for part in view.to_json()["parts"]]
    assert parts == vector["parts"]


async def test_the_view_in_the_page_is_as_the_vectors_say(running: OpenGateway, tabs: Tabs):
    async with running() as here:
        tab = await tabs.open(here)

        assert await tab.evaluate(RUN, VECTORS) == [vector["parts"] for vector in VECTORS]


async def test_a_reader_that_fell_behind_takes_a_snapshot_and_goes_on_until_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nanobot.agent.feed._MAX_ITEMS", 4)
    feed, topics = Feed(), "abcdefghij"
    reader = feed.follow(feed.cursor)
    for topic in topics:
        feed.changed(topic)

    assert await anext(reader) is None
    feed.changed("later")
    feed.close()
    rest = [item.event async for items in reader for item in items or ()]

    assert [event.topic for event in rest if isinstance(event, Changed)] == ["later"]
