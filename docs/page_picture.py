"""Write docs/page.png and docs/page-phone.png: a chat on the gateway's page, in a browser window and on a phone.

    python docs/page_picture.py

The model follows a script. Needs Chromium and the package playwright; no key and no network.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from nanobot.testing.model_server import Calls, FakeModels, Say
from tests.support.browser import chromium_program
from tests.support.toy_gateway import free_port

DOCS = Path(__file__).resolve().parent
TRIP = """# Kyoto, 14 to 18 December

hotel     4 nights  412.00  booked
train     Tokyo-Kyoto 2x  88.40  open
museum    Friday    24.00  open
"""
QUESTION = "The train to Kyoto is booked now, 88.40. Update trip.md and show me the budget."
ANSWER = """The train is marked as booked. **One item** is still open:

| Item | Cost | State |
|---|---:|---|
| Hotel, 4 nights | 412.00 | booked |
| Train, 2 tickets | 88.40 | booked |
| Museum on Friday | 24.00 | *open* |
| **Together** | **524.40** | |

Of the 600.00 that you planned, **75.60** are left. The museum sells its tickets from 1 December; shall I remind you?
"""
ASKED = "Put the timetable of the Shinkansen beside it."
COMMAND = {"command": "curl -o timetable.pdf https://rail.example/tokaido.pdf", "needs": ["network"]}
PRICE = {"input": 2.0, "cached": 0.2, "output": 8.0}
OTHERS = (
    ("Water the plants every Sunday at 10", Say("Done: every Sunday at 10:00.")),
    ("Which bills are due this week?", Say("Two: electricity on Thursday, and internet on Saturday.")),
    ("Sum up the minutes of Monday", Say("Three decisions, and one task for you: the offer for Lindner.")),
)


def usage(prompt: int, cached: int, completion: int) -> dict[str, object]:
    """What a model with this much in its prompt reports."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


SCRIPT = (
    Calls(("read_file", {"path": "trip.md"}), usage=usage(7842, 7168, 24)),
    Calls(
        (
            "edit_file",
            {"path": "trip.md", "old_text": "88.40  open", "new_text": "88.40  booked"},
        ),
        usage=usage(7931, 7808, 71),
    ),
    Say(ANSWER, usage=usage(8064, 7872, 96)),
)


def wait_for_file(file: Path) -> None:
    for _ in range(300):
        if file.exists():
            return
        time.sleep(0.1)
    raise SystemExit(f"{file.name} did not appear")


def say(page: Page, text: str) -> None:
    """Write a message, and wait for its answer."""
    page.fill(".composer textarea", text)
    page.click(".composer button[type=submit]")
    page.wait_for_selector(".message.turn .meta")


def take_pictures(home: Path, models: FakeModels, driver: Playwright, browser: Browser) -> None:
    """Chat on the page of a gateway, and take the two pictures."""
    data = home / ".nanobot"
    (data / "workspace").mkdir(parents=True)
    (data / "workspace" / "trip.md").write_text(TRIP, encoding="utf-8")
    config: dict[str, Any] = {
        "agents": {"defaults": {"provider": "custom", "model": "demo-model"}},
        "providers": {"custom": {"apiBase": models.v1, "apiKey": "none", "prices": {"*": PRICE}}},
        "tools": {"exec": {"network": False}},
        "gateway": {"port": free_port()},
    }
    (data / "config.json").write_text(json.dumps(config), encoding="utf-8")
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(DOCS.parent)}
    nanobot = [sys.executable, "-m", "nanobot"]

    def sign_in(**device: Any) -> Page:
        command = [*nanobot, "web", "--no-open"]
        link = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
        page = browser.new_context(**device).new_page()
        page.goto(link)
        page.wait_for_selector(".composer textarea")
        return page

    gateway = subprocess.Popen([*nanobot, "gateway"], env=environment, cwd=home)
    try:
        wait_for_file(data / "state" / "gateway.sock")
        page = sign_in(locale="en-GB", viewport={"width": 1180, "height": 760})
        for question, step in OTHERS:
            models.script(step)
            say(page, question)
            page.goto(page.url.partition("#")[0] + "#/chat")
            page.wait_for_selector(".welcome")
        models.script(*SCRIPT)
        say(page, QUESTION)
        page.wait_for_timeout(500)  # the list of chats
        page.screenshot(path=DOCS / "page.png")

        models.script(Calls(("exec", COMMAND), usage=usage(8190, 8064, 40)))
        page.fill(".composer textarea", ASKED)
        page.click(".composer button[type=submit]")
        page.wait_for_selector(".approval")
        phone = sign_in(locale="en-GB", **driver.devices["iPhone 13"], color_scheme="dark")
        phone.goto(page.url.partition("#")[0] + "#/inbox")
        phone.wait_for_selector(".approval")
        phone.wait_for_timeout(1500)  # its buttons react after a moment
        phone.screenshot(path=DOCS / "page-phone.png", scale="css")
    finally:
        gateway.terminate()
        gateway.wait()


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        FakeModels(models=("demo-model",), context_length=128_000) as models,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=chromium_program(), args=["--no-sandbox"])
        take_pictures(Path(folder), models, driver, browser)
        browser.close()
    for name in ("page.png", "page-phone.png"):
        print(f"{name}: {(DOCS / name).stat().st_size} bytes")


if __name__ == "__main__":
    main()
