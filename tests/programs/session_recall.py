"""Make the sessions of a workspace (the argument) findable; with words, find them. Prints the processor time taken."""

import sys
import time
from pathlib import Path

import nanobot.config.schema  # noqa: F401 every command has loaded it
from nanobot.session.folder import SessionFolder
from nanobot.session.search.index import SearchIndex
from nanobot.session.search.sources import sources_of


def recall_of(folder: Path) -> SearchIndex:
    files = SessionFolder(folder)
    return SearchIndex(folder / "state" / "search.db", lambda: sources_of(files, folder / "memory"), timeout_s=99)


def main(folder: str, words: str | None = None) -> None:
    if words is None:
        print("begun", flush=True)
    began = time.process_time()
    recall = recall_of(Path(folder))
    if words is None:
        recall.refresh()
    else:
        recall.search(words, lambda file: True)
    print(time.process_time() - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
