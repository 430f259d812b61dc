"""Commands that end in every way there is, as `nanobot strange`. The first argument says in which."""

import sys
from pathlib import Path

from nanobot.errors import ConfigError
from nanobot.security.secrets import hold_secrets


def refuse() -> None:
    raise ConfigError("config.json, line 3, agents.defaults.maxTokns: did you mean maxTokens?")


def open_what_is_missing() -> None:
    Path("/nowhere/at all").read_text(encoding="utf-8")


def bug() -> None:
    raise KeyError("surprise")


def interrupt() -> None:
    raise KeyboardInterrupt


def talk_on() -> None:
    for number in range(100_000):
        print(f"line {number}")


def speak() -> None:
    print("héllo 你好 \udc80")
    print("wörter", file=sys.stderr)


def leave_a_thread_behind() -> None:
    import threading

    threading.Thread(target=threading.Event().wait).start()
    print("done", end="")


def tell() -> None:
    """Break with a secret on its lips."""
    hold_secrets(lambda: {"a secret of ours": "a.key"})
    raise KeyError("a secret of ours")


def say_no() -> None:
    """Refuse with a secret on its lips."""
    hold_secrets(lambda: {"a secret of ours": "a.key"})
    raise ConfigError("a secret of ours is wrong")


def tell_the_size_of_a_core() -> None:
    import resource

    print(resource.getrlimit(resource.RLIMIT_CORE)[0])


if __name__ == "__main__":
    from nanobot.__main__ import main
    from nanobot.cli.main import COMMANDS

    COMMANDS["strange"] = (f"tests.cli.strange_commands:{sys.argv[1]}", "")
    sys.argv[1] = "strange"
    main()
