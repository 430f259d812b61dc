import sys
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.security.files.paths import PathDeniedError, PathPolicy

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and paths of POSIX")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data folder with a workspace in it, as a user has it."""
    for folder in ("workspace/sessions", "workspace/memory", "workspace/cron", "state", "outside"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def policy(home: Path) -> PathPolicy:
    return PathPolicy(home / "workspace", data_folder=home)


@pytest.mark.parametrize("path", ["memory/MEMORY.md", "HEARTBEAT.md", "sessions.md", "cron/notes.txt", "statement"])
def test_what_only_looks_like_state_may_be_written(policy: PathPolicy, path: str):
    policy.resolve_writable(path)


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/thread-self/environ", "/proc/1/mem"])
def test_the_keys_a_process_was_started_with_are_not_shown(policy: PathPolicy, path: str):
    with pytest.raises(PathDeniedError, match="secrets"):
        policy.resolve_readable(path)


@given(st.lists(st.sampled_from(["..", ".", "sessions", "out", "in", "memory", "HISTORY.md", "", "/"]), max_size=7))
def test_no_spelling_leaves_a_restricted_workspace_or_writes_our_state(home: Path, parts: list[str]):
    workspace = home / "workspace"
    for name, target in (("out", home / "outside"), ("in", workspace)):
        if not (workspace / name).is_symlink():
            (workspace / name).symlink_to(target)

    try:
        real = PathPolicy(workspace, restrict=True).resolve_writable("/".join(parts))
    except PathDeniedError:
        return

    assert real.is_relative_to(workspace)
    assert not real.is_relative_to(workspace / "sessions")
    assert real != workspace / "memory/HISTORY.md"


def test_what_comes_with_nanobot_is_read_also_when_restricted_and_never_written(tmp_path: Path):
    library = tmp_path / "library"
    policy = PathPolicy(tmp_path / "workspace", restrict=True, library=(library,))

    assert policy.resolve_readable(library / "weather" / "SKILL.md").name == "SKILL.md"
    with pytest.raises(PathDeniedError):
        policy.resolve_writable(library / "weather" / "SKILL.md")


@pytest.fixture
def house(tmp_path: Path, monkeypatch) -> Path:
    """A home whose data folder is in it, as a user has it."""
    home = tmp_path.resolve() / "home"
    monkeypatch.setenv("HOME", str(home))
    workspace = ("report.pdf", ".nanobot/spill/turn-1.txt", "sessions/cli_direct.jsonl", "memory/HISTORY.md")
    data = ("media/telegram/photo.jpg", "config.json", "state/journal.db", "logs/gateway.log")
    names = [*(f".nanobot/workspace/{name}" for name in workspace), *(f".nanobot/{name}" for name in data)]
    for name in (*names, ".ssh/id_rsa", ".bashrc", "docs/letter.txt", "shared/plan.txt"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    (home / ".nanobot/workspace/link").symlink_to(home / "docs/letter.txt")
    (home / ".nanobot/workspace/photo").symlink_to(home / ".nanobot/media/telegram/photo.jpg")
    return home


def bot_of(house: Path, workspace: str = ".nanobot/workspace") -> PathPolicy:
    data = house / ".nanobot"
    unreadable = (data / "config.json", data / "state", house / ".ssh")
    return PathPolicy(house / workspace, allowed=(house / "shared",), unreadable=unreadable, data_folder=data)


def test_of_a_secret_of_ours_nobody_is_told_to_ask_for_a_yes_to_write_it(house: Path):
    for path in ("~/.nanobot/config.json", "~/.nanobot/state/journal.db"):
        with pytest.raises(PathDeniedError, match="is never written"):
            bot_of(house).resolve_writable(path)


SENT = ["report.pdf", ".nanobot/spill/turn-1.txt", "photo", "~/.nanobot/media/telegram/photo.jpg", "~/shared/plan.txt"]
NOT_SENT = [
    "link", "~/docs/letter.txt", "~/.bashrc", "~/.ssh/id_rsa", "~/.nanobot/config.json", "~/.nanobot/state/journal.db",
    "~/.nanobot/logs/gateway.log", "../../docs/letter.txt", "sessions/cli_direct.jsonl", "memory/HISTORY.md",
    "/etc/passwd", "/proc/self/environ",
]  # fmt: skip


def test_only_what_the_agent_works_with_is_sent_to_a_chat(house: Path):
    for path in SENT:
        bot_of(house).resolve_sendable(path)
    for path in NOT_SENT:
        with pytest.raises(PathDeniedError):
            bot_of(house).resolve_sendable(path)


def test_a_home_as_workspace_sends_its_letters_and_no_hidden_file(house: Path):
    policy = bot_of(house, ".")

    policy.resolve_sendable("docs/letter.txt")
    policy.resolve_sendable(".nanobot/media/telegram/photo.jpg")
    for path in (".bashrc", ".ssh/id_rsa", ".nanobot/logs/gateway.log"):
        with pytest.raises(PathDeniedError):
            policy.resolve_sendable(path)


def test_a_place_that_becomes_a_link_is_known_where_it_leads(house: Path):
    policy = bot_of(house)
    policy.resolve_readable(house / "docs/letter.txt")

    (house / ".ssh").rename(house / "docs/keys")
    (house / ".ssh").symlink_to(house / "docs/keys")

    time.sleep(0.06)  # longer than what was seen is believed unseen
    with pytest.raises(PathDeniedError):
        policy.resolve_readable(house / "docs/keys/id_rsa")


@pytest.mark.parametrize("name", ["Sessions/x", "SESSIONS/x", "memory/history.md"])
def test_a_spelling_that_may_mean_our_state_on_this_disk_is_not_written(house: Path, name: str):
    policy = PathPolicy(house / "ws", data_folder=house / "other")

    with pytest.raises(PathDeniedError, match="nanobot's own state"):
        policy.resolve_writable(name)


def test_two_spellings_of_the_same_letters_are_one_place(house: Path):
    protected = house / "ws" / unicodedata.normalize("NFC", "gehört-mir")
    policy = PathPolicy(house / "ws", protected=(protected,))

    with pytest.raises(PathDeniedError, match=r"tools\.protectedPaths"):
        policy.resolve_writable(unicodedata.normalize("NFD", "gehört-mir") + "/x")


def test_a_key_that_is_new_is_known_by_its_other_name_a_moment_later(house: Path, monkeypatch: pytest.MonkeyPatch):
    policy = bot_of(house)
    (known := house / "shared/known").hardlink_to(house / ".ssh/id_rsa")
    assert policy.other_name_of(known.stat())

    (house / ".ssh/id_new").touch()
    (new := house / "shared/new").hardlink_to(house / ".ssh/id_new")
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)

    assert policy.other_name_of(new.stat()) == str(house / ".ssh/id_new")
