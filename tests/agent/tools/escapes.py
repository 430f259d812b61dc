"""Paths that somebody wrote to get out: a table, and the house they want to get out of.

Each line is a path as a model may write it; `{home}`, `{data}`, `{ws}` and `{root}` stand for the places of the house.
`made` lines are links and hard links that were put into the workspace before.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from nanobot.security.files.paths import PathPolicy, key_places

CANARY = "CANARY-7f3a"


@dataclass(frozen=True)
class House:
    """A home with keys in it, a data folder, a workspace, and a folder of somebody else."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def data(self) -> Path:
        return self.home / ".nanobot"

    @property
    def workspace(self) -> Path:
        return self.data / "workspace"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    def path(self, template: str) -> str:
        return template.format(home=self.home, data=self.data, ws=self.workspace, root=self.root, long="x" * 300)

    def policy(self, *, restrict: bool = False) -> PathPolicy:
        return PathPolicy(
            self.workspace,
            restrict=restrict,
            protected=(self.workspace / "kept", self.outside / "kept"),
            unreadable=(
                self.data / "config.json",
                self.data / "pairing.json",
                self.data / "state",
                *key_places(self.home),
            ),
            data_folder=self.data,
        )

    def contents(self) -> dict[str, bytes]:
        """Every file that no tool may touch unasked, with its bytes."""
        apart = self.workspace
        guarded = [apart / name for name in ("sessions", "cron", "kept")] + [apart / "memory/HISTORY.md"]
        found = {}
        for folder, _, names in os.walk(self.root):
            for path in (Path(folder) / name for name in names):
                inside = path.is_relative_to(apart) and not any(path.is_relative_to(place) for place in guarded)
                if not inside and not path.is_symlink() and path.is_file():
                    found[str(path)] = path.read_bytes()
        return found


_FILES = (
    "home/.ssh/id_rsa",
    "home/.ssh/config",
    "home/.aws/credentials",
    "home/.netrc",
    "home/.config/gh/hosts.yml",
    "home/.nanobot/config.json",
    "home/.nanobot/pairing.json",
    "home/.nanobot/state/nanobot.db",
    "home/.nanobot/workspace/sessions/cli_direct.jsonl",
    "home/.nanobot/workspace/cron/jobs.json",
    "home/.nanobot/workspace/memory/HISTORY.md",
    "home/.nanobot/workspace/kept/law.txt",
    "outside/plain.txt",
    "outside/kept/law.txt",
)


def build(root: Path) -> House:
    """The house, with a canary in every file, and what somebody has put into its workspace."""
    house = House(root)
    for name in _FILES:
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{CANARY} in {name}\n", encoding="utf-8")
    (house.workspace / "notes.txt").write_text("harmless\n", encoding="utf-8")
    (house.workspace / "deep/er").mkdir(parents=True)
    for name, target in MADE.items():
        (house.workspace / name).symlink_to(house.path(target))
    for name, target in HARD.items():
        os.link(house.path(target), house.workspace / name)
    with contextlib.suppress(FileExistsError):
        os.mkfifo(house.workspace / "pipe")
    return house


MADE = {
    "l_key": "{home}/.ssh/id_rsa",
    "l_keys": "{home}/.ssh",
    "l_config": "../config.json",
    "l_state": "{data}/state",
    "l_home": "{home}",
    "l_root": "{root}",
    "l_slash": "/",
    "l_up": "..",
    "l_chain": "l_chain2",
    "l_chain2": "deep/l_chain3",
    "deep/l_chain3": "../../config.json",
    "l_sessions": "sessions",
    "l_history": "memory/HISTORY.md",
    "l_kept": "kept",
    "l_out": "{root}/outside",
    "l_new": "{root}/outside/new.txt",
    "l_newkey": "{home}/.ssh/authorized_keys",
    "l_self": "/proc/self",
    "l_environ": "/proc/self/environ",
    "l_fd": "/dev/fd",
    "l_loop": "l_loop2",
    "l_loop2": "l_loop",
    "l_dots": "deep/../../config.json",
    "l_abs_dots": "{ws}/deep/er/../../../state/nanobot.db",
}
HARD = {
    "h_key": "{home}/.ssh/id_rsa",
    "h_config": "{data}/config.json",
    "deep/h_state": "{data}/state/nanobot.db",
    "deep/er/h_netrc": "{home}/.netrc",
}

SECRETS = """
{home}/.ssh/id_rsa
{home}/.ssh/../.ssh/id_rsa
{home}/./.ssh/./id_rsa
{home}//.ssh//id_rsa
//{home}/.ssh/id_rsa
///{home}/.ssh/id_rsa
{home}/.ssh/id_rsa/
{home}/.ssh/id_rsa/.
{home}/.ssh
{home}/.ssh/
{home}/.ssh/.
{home}/.ssh/config
~/.ssh/id_rsa
~/.ssh/../.aws/credentials
~//.ssh/id_rsa
~/./.netrc
~/.netrc
~/.aws
~/.aws/credentials
~/.config/gh/hosts.yml
~/.config/../.config/gh/hosts.yml
~/.nanobot/config.json
~/.nanobot/workspace/../config.json
~/.nanobot/pairing.json
~/.nanobot/state
~/.nanobot/state/nanobot.db
{home}/.nanobot/workspace/deep/../../config.json
../config.json
../pairing.json
../state/nanobot.db
../state
../state/../config.json
../../.ssh/id_rsa
../../.aws/credentials
./../config.json
deep/../../config.json
deep/er/../../../config.json
deep/er/../../../../.ssh/id_rsa
nowhere/../../config.json
notes.txt/../../config.json
{ws}/../config.json
{ws}/../../.ssh/id_rsa
{ws}/deep/../../state/nanobot.db
{data}/config.json
{data}/./config.json
{data}/state/../config.json
l_key
./l_key
deep/../l_key
l_keys/id_rsa
l_keys/config
l_keys
l_keys/../.aws/credentials
l_config
l_state/nanobot.db
l_state
l_home/.ssh/id_rsa
l_home/.nanobot/config.json
l_home/.nanobot/workspace/../state/nanobot.db
l_root/home/.ssh/id_rsa
l_root/home/.nanobot/pairing.json
l_slash/{home}/.ssh/id_rsa
l_slash/proc/self/environ
l_up/config.json
l_up/state/nanobot.db
l_up/../.ssh/id_rsa
l_chain
l_chain2
deep/l_chain3
l_dots
l_abs_dots
h_key
./h_key
h_config
deep/h_state
deep/er/h_netrc
l_home/.nanobot/workspace/h_key
l_slash/{ws}/h_config
/proc/self/root/{home}/.ssh/id_rsa
/proc/self/cwd/../../../../../../../../{home}/.ssh/id_rsa
/proc/thread-self/root/{home}/.netrc
/proc/1/root/{home}/.ssh/id_rsa
/proc/self/environ
/proc/self/../self/environ
/proc/thread-self/environ
/proc/1/environ
/proc/1/task/1/environ
/proc/self/task/../environ
/proc/self/mem
/proc/self/maps
/proc/self/smaps
/proc/self/auxv
/proc/self/cmdline
/proc/self/fd
/proc/self/fd/0
/proc/self/fdinfo
/proc/self/map_files
/proc/self/stack
/proc/1/mem
/proc/1/maps
/proc/1/cwd
/proc/1/exe
/proc/1
/proc/self
/proc/kcore
/proc/kmsg
/proc/kallsyms
/proc/keys
/proc/vmcore
/dev/fd
/dev/fd/0
/dev/stdin
/dev/mem
/dev/kmsg
/dev/zero
/dev/random
/dev/tty
/dev/sda
l_self/environ
l_environ
l_fd/0
l_loop
pipe
{home}/.ssh/id_rsa\0.txt
notes.txt\0{home}/.ssh/id_rsa
{long}/../../config.json
{long}/{long}
/{long}/../{home}/.ssh/id_rsa
~root/.ssh/id_rsa
~nobody-of-that-name/.ssh/id_rsa
""".strip().split("\n")
"""Nothing of these may be shown by the default policy."""

OUTSIDE = """
{root}/outside/plain.txt
{root}/outside
../../../outside/plain.txt
l_out/plain.txt
l_out
l_root/outside/plain.txt
l_slash/{root}/outside/plain.txt
l_home/../outside/plain.txt
l_up/../../outside/plain.txt
{ws}/../../../outside/plain.txt
{ws}x/../../../../outside/plain.txt
/proc/self/root/{root}/outside/plain.txt
/proc/self/cwd
~/../outside/plain.txt
/etc/passwd
/etc
/
""".strip().split("\n")
"""Nothing of these may be shown by a restricted policy, nor of SECRETS."""

WRITES = """
{home}/.ssh/authorized_keys
{home}/.ssh/new
{home}/.bashrc
~/.profile
~/new.txt
{root}/outside/plain.txt
{root}/outside/new.txt
{root}/outside/new/folder/file.txt
{root}/outside/kept/law.txt
{root}/new
../new.txt
../media/new.txt
../config.json
../config.json.bak
../pairing.json
../state/new
../state/nanobot.db
sessions/cli_direct.jsonl
sessions/new.jsonl
./sessions/../sessions/new.jsonl
sessions
cron/jobs.json
memory/HISTORY.md
memory/../memory/HISTORY.md
kept/law.txt
kept/new.txt
kept
deep/../kept/law.txt
deep/../../config.json
nowhere/../../new.txt
l_key
l_keys/authorized_keys
l_config
l_state/new
l_home/.bashrc
l_root/outside/plain.txt
l_slash/{root}/outside/new.txt
l_up/new.txt
l_chain
l_sessions/new.jsonl
l_history
l_kept/law.txt
l_out/plain.txt
l_out/new.txt
l_out/new/folder/file.txt
l_new
l_newkey
l_dots
l_self/comm
/proc/self/comm
/proc/sys/kernel/core_pattern
/sys/kernel/uevent_helper
/dev/null
/dev/shm/../null
l_fd/1
l_loop
pipe
notes.txt/x
{long}/x
new\0.txt
SESSIONS/cli_direct.jsonl
Sessions/new.jsonl
memory/history.md
KEPT/law.txt
""".strip().split("\n")
"""Writing there changes nothing that is not the workspace's own, by the default policy."""
