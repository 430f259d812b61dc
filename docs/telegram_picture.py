"""Write docs/telegram.svg: what a gateway sends to a fake Telegram server, drawn as a chat.

    python docs/telegram_picture.py

The model follows a script; no key and no network.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
import textwrap
from html import escape
from pathlib import Path
from typing import Any

from nanobot.testing.model_server import Calls, FakeModels, Say
from tests.fakes.telegram import TOKEN, FakeTelegram

TARGET = Path(__file__).resolve().with_name("telegram.svg")
ANNA = 111
WIDTH, LINE, COLUMNS = 460, 21, 42
ASKED = ("Remind me every day at 18:00 to water the plants", "What did I spend this week?")
TABLE = """**Spent so far: 96.60**

| Day | What | Cost |
|---|---|---:|
| Mon | groceries | 54.20 |
| Tue | train | 18.40 |
| Thu | cinema | 24.00 |
"""
JOB = {"action": "add", "name": "plants", "message": "Water the plants", "cron_expr": "0 18 * * *"}
SCRIPT = (
    Calls(("cron", JOB)),
    Say("Done: every day at 18:00 I will remind you to water the plants."),
    Calls(("read_file", {"path": "spending.md"})),
    Say(TABLE),
    Say("Time to water the plants!"),
)


async def chat(home: Path, models: FakeModels) -> list[tuple[bool, dict[str, Any]]]:
    """(whether Anna wrote it, the message) in the order of the chat."""
    telegram = FakeTelegram()
    telegram.people[ANNA] = {"id": ANNA, "is_bot": False, "first_name": "Anna"}
    telegram.chats[ANNA] = {"id": ANNA, "type": "private", "first_name": "Anna"}
    async with telegram.open():
        config = {
            "agents": {"defaults": {"provider": "custom", "model": "demo-model"}},
            "providers": {"custom": {"apiBase": models.v1, "apiKey": "none"}},
            "channels": {"telegram": {"enabled": True, "token": TOKEN, "apiBase": telegram.url}},
            "gateway": {"port": 18799},
        }
        data = home / ".nanobot"
        (data / "workspace").mkdir(parents=True)
        (data / "workspace" / "spending.md").write_text("Mon groceries 54.20, Tue train 18.40, Thu cinema 24.00\n")
        (data / "config.json").write_text(json.dumps(config))
        environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(TARGET.parent.parent)}

        def nanobot(*words: str) -> Any:
            return asyncio.create_subprocess_exec(sys.executable, "-m", "nanobot", *words, env=environment, cwd=home)

        async def next_reply(seen: int) -> dict[str, Any]:
            """The bot's message number `seen`, once it is no longer edited."""
            for _ in range(200):
                await asyncio.sleep(0.2)
                shown = telegram.shown(ANNA)
                if len(shown) > seen:
                    edits = shown[seen].edits
                    await asyncio.sleep(1.5)
                    if shown[seen].edits == edits:
                        return shown[seen].json
            raise SystemExit("the bot did not answer")

        async def ask(text: str) -> dict[str, Any]:
            seen = len(telegram.shown(ANNA))
            await telegram.message(ANNA, ANNA, text)
            return await next_reply(seen)

        gateway = await nanobot("gateway")
        messages: list[tuple[bool, dict[str, Any]]] = []
        try:
            (code,) = re.findall(r"approve (\w+) --owner", (await ask("hello"))["text"])
            await (await nanobot("pairing", "approve", code, "--owner")).wait()
            await asyncio.sleep(1)
            for text in ASKED:
                messages += [(True, {"text": text}), (False, await ask(text))]
            seen = len(telegram.shown(ANNA))
            (job,) = json.loads((data / "workspace" / "cron" / "jobs.json").read_text())["jobs"]
            await (await nanobot("cron", "run", job["id"])).wait()
            messages.append((False, await next_reply(seen)))
        finally:
            gateway.terminate()
            await gateway.wait()
    return messages


def lines_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    """(text, style) of each line of a message."""
    text = message["text"]
    styles = ["normal"] * (len(text) + 1)
    for entity in message.get("entities", []):
        end = entity["offset"] + entity["length"]
        styles[entity["offset"] : end] = [entity["type"]] * entity["length"]
    lines, at = [], 0
    for line in text.split("\n"):
        style = "pre" if styles[at] in ("pre", "code") else "bold" if styles[at] == "bold" else "normal"
        at += len(line) + 1
        lines += [(part, style) for part in ([line] if style == "pre" else textwrap.wrap(line, COLUMNS) or [""])]
    return lines


def picture(messages: list[tuple[bool, dict[str, Any]]]) -> str:
    """The chat as SVG."""
    shapes, y = [], 16
    for own, message in messages:
        lines = lines_of(message)
        width = min(WIDTH - 60, max(len(text) * (8.4 if style == "pre" else 8.2) for text, style in lines) + 28)
        height = len(lines) * LINE + 18
        x = WIDTH - 16 - width if own else 16
        colour = "#dcf8c6" if own else "#ffffff"
        shapes.append(f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{height}" rx="12" fill="{colour}"/>')
        for number, (text, style) in enumerate(lines):
            at = f'x="{x + 14:.0f}" y="{y + 23 + number * LINE}" class="{style}" xml:space="preserve"'
            shapes.append(f"<text {at}>{escape(text)}</text>")
        y += height + 8
        for row in message.get("reply_markup", {}).get("inline_keyboard", []):
            button = (WIDTH - 60) / len(row)
            for number, each in enumerate(row):
                left = 16 + number * button
                shapes.append(
                    f'<rect x="{left:.0f}" y="{y - 4}" width="{button - 4:.0f}" height="30" rx="8" class="button"/>'
                )
                middle = f'x="{left + button / 2 - 2:.0f}" y="{y + 16}" text-anchor="middle"'
                shapes.append(f'<text {middle} class="label">{escape(each["text"])}</text>')
            y += 34
    style = (
        "text { font: 15px sans-serif; fill: #1c1c1c } .bold { font-weight: bold } .pre { font: 14px monospace } "
        ".button { fill: #7d9db5 } .label { fill: #ffffff; font-size: 14px }"
    )
    size = f'viewBox="0 0 {WIDTH} {y + 8}" width="{WIDTH}" height="{y + 8}"'
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{style}</style>\n'
        f'<rect width="100%" height="100%" rx="12" fill="#cfe0ea"/>\n{body}\n</svg>\n'
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, FakeModels(models=("demo-model",)) as models:
        models.script(*SCRIPT)
        svg = picture(asyncio.run(chat(Path(folder), models)))
    TARGET.write_text(svg, encoding="utf-8")
    print(f"{TARGET.name}: {len(svg)} characters")


if __name__ == "__main__":
    main()
