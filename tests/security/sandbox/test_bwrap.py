import os
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from nanobot.security.sandbox.bwrap import Bwrap
from nanobot.security.sandbox.sandbox import Sandbox
from nanobot.security.sandbox.view import ViewGrants
from tests.support.sandbox_home import CANARY, SandboxHome


def test_the_rest_is_read_only(home: SandboxHome):
    ran = home.sh("cat ~/notes.txt; echo bad > ~/notes.txt; touch /usr/bad /etc/bad ~/bad; rm -f ~/notes.txt; true")

    assert ran.stdout == "plain notes"
    assert "Read-only file system" in ran.stderr
    assert (home.path / "notes.txt").read_text(encoding="utf-8") == "plain notes"
    assert not (home.path / "bad").exists()


@pytest.mark.parametrize("restricted", [False, True])
def test_no_spelling_shows_a_key(home: SandboxHome, *, restricted: bool):
    home = home.restricted() if restricted else home
    ours = [f".nanobot/{name}" for name in ("config.json", "state/journal.db", "pairing.json")]
    names = [".ssh/id_ed25519", ".aws/credentials", ".netrc", *ours]
    for name in names:
        (home.workspace / f"link-{Path(name).name}").symlink_to(home.path / name)
    script = f"""
        for name in {" ".join(names)}; do
            cat ~/$name link-${{name##*/}} /proc/self/root{home.path}/$name /proc/1/root{home.path}/$name
            cat /proc/1/cwd/../../../$name; ln ~/$name hard-${{name##*/}} && cat hard-${{name##*/}}
            chmod 777 ~/${{name%%/*}}; cat ~/$name
        done
        cp -r {home.path} all; grep -r {CANARY[:6]} all ~ /proc/*/environ; tar cf - ~ 2>/dev/null
        for i in /proc/[0-9]*; do cat $i/environ; done; true
    """

    ran = home.sh(script)

    assert CANARY not in ran.stdout
    assert not list(home.workspace.glob("hard-*"))


def test_restricted_nothing_else_of_home_is_there(home: SandboxHome):
    home = home.restricted()

    ran = home.sh("ls -A ~ ~/.nanobot | tail -n +2 | tr '\\n' ' '; cat ~/notes.txt; echo x > ~/vanishes")

    assert ran.stdout == f".nanobot  {home.data}: tmp workspace "
    assert "Read-only file system" in ran.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's own files are opened without powers")
def test_the_knobs_of_the_kernel_are_not_turned_by_a_root_without_powers(home: SandboxHome):
    knobs = "/proc/sys/kernel/core_pattern /proc/sys/kernel/panic /proc/sys/vm/drop_caches /proc/mtrr"

    ran = home.sh(f"for i in {knobs} $(find /proc/irq /proc/bus -type f); do (: >> $i) 2>/dev/null && echo $i; done")

    assert ran.stdout == ""
    assert home.sh("chmod 444 /proc/uptime || chmod 444 /proc/self/net/dev").returncode != 0
    assert home.sh("cat /proc/sys/kernel/osrelease /proc/uptime").returncode == 0


def test_what_commands_must_not_write_in_the_workspace_is_read_only(home: SandboxHome):
    ran = home.sh("""
        echo '{}' > cron/jobs.json; echo x >> memory/HISTORY.md; echo x > sessions/new.jsonl; mv sessions other
        rm -rf sessions cron memory/HISTORY.md; echo fine > memory/MEMORY.md; cat sessions/cli_direct.jsonl
    """)

    assert ran.stdout == "{}\n"
    assert (home.workspace / "memory/HISTORY.md").read_text(encoding="utf-8") == "history"
    assert (home.workspace / "memory/MEMORY.md").exists()
    assert [path.name for path in (home.workspace / "sessions").iterdir()] == ["cli_direct.jsonl"]
    assert not (home.workspace / "cron/jobs.json").exists()


def test_places_of_ours_that_are_missing_are_guarded_too(home: SandboxHome):
    paths = replace(home.paths, workspace=home.data / "fresh")
    (home.data / "fresh").mkdir()

    ran = replace(home, paths=paths).sh(
        "mkdir -p sessions cron; echo x > sessions/a.jsonl; echo {} > cron/jobs.json; echo x > memory/HISTORY.md; ls"
    )

    assert ran.stdout == "cron\nmemory\nsessions\n"
    assert not list((home.data / "fresh/sessions").iterdir())
    assert not list((home.data / "fresh/cron").iterdir())
    assert (home.data / "fresh/memory/HISTORY.md").read_bytes() == b""


def test_a_config_that_is_replaced_while_a_command_runs_stays_unseen(home: SandboxHome):
    swap = home.path / ".nanobot/config.json.new"
    swap.write_text(CANARY, encoding="utf-8")

    script = "touch go; while [ -e go ]; do sleep 0.01; done; cat ~/.nanobot/config.json"

    def replace_it() -> None:
        while not (home.workspace / "go").exists():
            pass
        swap.rename(home.path / ".nanobot/config.json")
        (home.workspace / "go").unlink()

    other = threading.Thread(target=replace_it)
    other.start()
    ran = home.sh(script)
    other.join()

    assert CANARY not in ran.stdout


def test_nobody_outside_can_be_seen_or_ended(home: SandboxHome):
    ran = home.sh(f"kill -9 {os.getpid()}; ls /proc | grep -c '^[0-9]'; id -u; cat /proc/self/status")

    assert "No such process" in ran.stderr
    said = ran.stdout.splitlines()
    assert int(said[0]) < 8
    assert said[1] != "0"
    assert "CapEff:\t0000000000000000" in said
    assert "NoNewPrivs:\t1" in said


def test_without_network_no_service_of_the_machine_answers(home: SandboxHome):
    served = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0nanobot-{os.getpid()}")
    abstract.listen()
    name = f"\\0nanobot-{os.getpid()}"
    script = f"""
        exec 3<>/dev/tcp/127.0.0.1/{served.getsockname()[1]} && echo tcp
        /usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("{name}")' && echo unix
    """

    ran = replace(home, network=False).sh(script)

    assert ran.stdout == ""
    assert "refused" in ran.stderr
    served.close()
    abstract.close()


def test_a_service_with_a_socket_in_the_home_cannot_be_called(home: SandboxHome, monkeypatch: pytest.MonkeyPatch):
    place = home.path / "daemon.sock"
    with socket.socket(socket.AF_UNIX) as service:
        monkeypatch.chdir(home.path)
        service.bind(str(place))
        service.listen()
        script = f"/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{place}\")' && echo in"

        assert home.sh(script).stdout == ""
        assert home.sh(script, grants=ViewGrants(services=(place,))).stdout == "in\n"


def test_no_user_namespace_and_no_mount_inside(home: SandboxHome):
    ran = home.sh("unshare -U true && echo ns; mount -t tmpfs x /mnt && echo mounted; umount ~/.ssh && echo open; true")

    assert ran.stdout == ""


def test_where_no_proc_of_its_own_is_allowed_other_processes_are_seen_and_neither_read_nor_ended(home: SandboxHome):
    walls = Sandbox(home.paths, "bwrap")
    bwrap = walls.support
    assert isinstance(bwrap, Bwrap)
    script = "cat /proc/$1/comm; cat /proc/$1/environ /proc/$1/root/etc/hostname; kill -0 $1 && echo ended; true"

    with subprocess.Popen(["sleep", "20"], env={"SECRET": CANARY}) as other:
        command = ["/bin/sh", "-c", script, "sh", str(other.pid)]
        argv = replace(bwrap, own_proc=False).argv(walls.view(home.workspace), home.workspace, command)
        seen = subprocess.run(argv, capture_output=True, text=True, check=True)
        other.kill()

    assert seen.stdout == "sleep\n"
