"""A process that changes a config again and again: adds names of its own to a list, each in a change by itself."""

import sys
from functools import partial
from pathlib import Path

from nanobot.config.loader import change_config, load_config
from nanobot.config.schema import Config


def add(name: str, config: Config) -> Config:
    config.tools.exec.allowed_env_keys.append(name)
    return config


if __name__ == "__main__":
    _, path, prefix, count = sys.argv
    for number in range(int(count)):
        change_config(partial(load_config, path), partial(add, f"{prefix}{number}"), Path(path))
