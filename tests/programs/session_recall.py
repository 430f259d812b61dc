"""Make the sessions of a workspace (the argument) findable."""

import sys
from pathlib import Path

import nanobot.config.schema  # noqa: F401 every command has loaded it
from nanobot.session.folder import SessionFolder
from nanobot.session.search.index import SearchIndex
from nanobot.session.search.update import sources_of


def recall_of(folder: Path) -> SearchIndex:
    files = SessionFolder(folder)
    return SearchIndex(folder / "state" / "search.db", lambda: sources_of(files, folder / "memory"), timeout_s=99)


if __name__ == "__main__":
    print("begun", flush=True)
    recall_of(Path(sys.argv[1])).refresh()
