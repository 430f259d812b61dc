"""A bot that is killed again and again: run as a program, it prints what it saw as one JSON object.

One process imports everything once and forks a life for each kill, so that hundreds of lives take seconds. A life
plays turns of the same session until SIGKILL meets it at a random moment; the parent then looks at what is left.
"""

import asyncio
import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from nanobot.messages.repair import legalise
from nanobot.session.manager import SessionManager
from nanobot.testing import calls, open_bot
from nanobot.testing.protocol_rules import anthropic_problems, openai_problems

SESSION = "cli:direct"
MOST_LINES = 6
"""A life is killed when it has told so much at most, and a moment later."""
A_MOMENT_S = 0.03


def live(home: Path, life: int, acknowledged: int) -> None:
    """Play turns until killed; each reply that the person has seen is told through the pipe."""

    asyncio.run(play(home, life, acknowledged, 10_000))


async def play(home: Path, life: int, acknowledged: int, turns: int) -> None:
    """So many turns."""
    async with open_bot(home) as bot:
        for turn in range(turns):
            name = f"{life}-{turn}"
            os.write(acknowledged, f"asked {name}\n".encode())
            bot.provider.script(
                calls(("list_dir", {"path": "."}), ("write_file", {"path": "n.txt", "content": name * 50})),
                calls(("read_file", {"path": "n.txt"}), text=f"reading {name}"),
                f"reply {name}",
            )
            if await bot.say(f"question {name}") != f"reply {name}":
                os.write(acknowledged, f"wrong {name}\n".encode())
            os.write(acknowledged, f"replied {name}\n".encode())


def look(home: Path, told: list[tuple[str, str]], sound: Counter[str]) -> list[str]:
    """What is wrong with what the kill left."""
    session = SessionManager(home / "workspace").get_or_create(SESSION)
    stored = {str(row["content"]) for row in session.messages}
    problems = [f"lost: {word} {name}" for word, name in told if word == "replied" and f"reply {name}" not in stored]
    problems += [f"wrong reply: {name}" for word, name in told if word == "wrong"]
    problems += [
        f"lost: question {name}" for word, name in told if word == "replied" and f"question {name}" not in stored
    ]
    request = legalise(
        [{"role": "system", "content": "s"}, *session.get_history(), {"role": "user", "content": "next"}]
    )
    problems += openai_problems(request) + anthropic_problems(request)
    if "next" not in str(request[-1]["content"]):
        problems.append("the latest message is not in the request")
    sound["messages"] = session.message_count
    return problems


def main() -> None:
    """`many_lives HOME LIVES SEED`"""
    home, lives, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    counts: Counter[str] = Counter()
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as elsewhere, open(os.devnull, "wb") as nobody:
        asyncio.run(play(Path(elsewhere), -1, nobody.fileno(), 1))  # what a turn loads is loaded once
    gc.freeze()
    for life in range(lives):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            try:
                live(home, life, writing)
            finally:
                os._exit(9)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            lines = [pipe.readline() for _ in range(chance.randrange(MOST_LINES))]
            time.sleep(chance.uniform(0, A_MOMENT_S))
            os.kill(child, signal.SIGKILL)
            lines += pipe.readlines()
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            problems.append(f"life {life} ended by itself with {os.waitstatus_to_exitcode(status)}")
        told = [(word, name) for word, _, name in (line.strip().partition(" ") for line in lines)]
        counts["kills"] += 1
        counts["replies"] += sum(word == "replied" for word, _ in told)
        counts["killed in a turn"] += bool(told) and told[-1][0] == "asked"
        problems += look(home, told, counts)
    print(json.dumps({"counts": counts, "problems": problems[:20]}))


if __name__ == "__main__":
    main()
