"""The gateway installs, starts and restarts the bridge as its child. `node` and `npm` are stand-ins of these tests."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.status import ChannelState
from nanobot.channels.whatsapp.bridge import SOURCE
from nanobot.testing.live_channel import live
from tests.fakes.whatsapp import ANNA, ME, TOKEN
from tests.support.eventually import eventually
from tests.support.toy_gateway import free_port

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-ins are scripts with a shebang")

STAND_IN = f"""#!{sys.executable}
import os, sys

if sys.argv[1] == "--version":
    print("v20.11.0")
    raise SystemExit

from pathlib import Path

state, token = Path(os.environ["BRIDGE_STATE"]), os.environ["BRIDGE_TOKEN"]
with open(state / "starts", "a") as file:
    print(os.getpid(), token, os.environ["AUTH_DIR"], sorted(os.environ), file=file)
if (state / "fault").exists():
    fault = (state / "fault").read_text()
    print(fault, file=sys.stderr)
    raise SystemExit(78 if "port" in fault else 1)

import asyncio, json
from websockets.asyncio.server import serve


async def speak(socket):
    assert json.loads(await socket.recv())["token"] == token
    await socket.send(json.dumps(dict(type="status", status="connected", version=2, me="{ME}")))
    while not (state / "say").exists():
        await asyncio.sleep(0.01)
    said = dict(id=(state / "say").read_text(), content=(state / "say").read_text())
    (state / "say").unlink()
    await socket.send(json.dumps(said | dict(type="message", chat="{ANNA}", sender="{ANNA}", pn="{ANNA}", timestamp=1)))
    await socket.wait_closed()


async def main():
    async with serve(speak, "127.0.0.1", int(os.environ["BRIDGE_PORT"])):
        print("listening", flush=True)
        (state / "listens").touch()
        await asyncio.to_thread(sys.stdin.read)
        os._exit(0)


asyncio.run(main())
"""
NPM = """#!/bin/sh
echo "$@" >> "$HOME/npm"
mkdir node_modules
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the only `node` and `npm` on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"node": STAND_IN, "npm": NPM}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("SOME_API_KEY", "s3cr3t")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "auth").mkdir()
    (tmp_path / "auth" / "creds.json").write_text("{}")
    return folder


@pytest.fixture
def managed(whatsapp, tmp_path, programs):
    """The settings of a bridge that the gateway runs."""
    return {
        "bridge_managed": True, "bridge_url": f"ws://localhost:{free_port()}", "bridge_token": "",
        "auth_dir": str(tmp_path / "auth"),
    }  # fmt: skip


def starts(folder: Path) -> list[list[str]]:
    file = folder / "starts"
    return [line.split(maxsplit=3) for line in file.read_text().splitlines()] if file.exists() else []


async def test_the_gateway_installs_the_bridge_once_and_runs_it(whatsapp, tmp_path, managed):
    for said in ("hello", "again"):
        async with live(whatsapp, tmp_path, silent=True, **managed) as life:
            await life.is_up()
            (tmp_path / "say").write_text(said)
            message = await life.hears(said)

    assert message.chat_id == ANNA
    (first, token, auth, environ), (second, other_token, *_) = starts(tmp_path)
    assert first != second
    assert len(token) > 20 and token != other_token != TOKEN
    assert auth == str(tmp_path / "auth")
    assert "SOME_API_KEY" not in environ
    assert (tmp_path / "npm").read_text() == "ci --ignore-scripts --no-audit --no-fund --omit=peer\n"
    assert [path.name for path in tmp_path.glob("bridge-*/*.mjs")] == ["bridge.mjs"]
    for pid in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


async def test_a_bridge_that_dies_is_started_again(whatsapp, tmp_path, managed):
    async with live(whatsapp, tmp_path, silent=True, **managed) as life:
        await life.is_up()
        os.kill(int(starts(tmp_path)[0][0]), 9)
        await eventually(lambda: len(starts(tmp_path)) == 2)
        await life.is_up()
        (tmp_path / "say").write_text("hello")
        await life.hears("hello")


async def test_a_bridge_that_dies_again_and_again_is_started_every_five_minutes_only(whatsapp, tmp_path, managed):
    (tmp_path / "fault").write_text("something broke")
    async with live(whatsapp, tmp_path, **managed) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED, 30)

        assert "fails again and again" in life.channel.status.last_error
        assert "something broke" in life.channel.status.last_error
        assert len(starts(tmp_path)) == 6


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("fault", "port 3001 is in use by another program", "cannot run: port 3001 is in use by another program"),
        ("auth/creds.json", None, "Run `nanobot channels login whatsapp`"),
        ("bin/npm", "#!/bin/sh\necho 'no network' >&2\nexit 1\n", "failed with status 1: no network"),
    ],
)
async def test_a_bridge_that_cannot_run_says_why(whatsapp, tmp_path, managed, file, text, told):
    if text is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(text)
    async with live(whatsapp, tmp_path, **managed) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert told in life.channel.status.last_error
    assert len(starts(tmp_path)) == (file == "fault")
    assert len([*tmp_path.glob("bridge-*"), *tmp_path.glob("installing-*")]) == (file == "fault")


async def test_the_keys_of_earlier_releases_are_used_where_they_are(whatsapp, tmp_path, managed):
    old = tmp_path / ".nanobot" / "whatsapp-auth"
    old.mkdir(parents=True)
    (old / "creds.json").write_text("{}")
    async with live(whatsapp, tmp_path, **managed | {"auth_dir": ""}) as life:
        await life.is_up()

    assert [auth for _, _, auth, _ in starts(tmp_path)] == [str(old)]


@pytest.mark.parametrize("version", ["v18.19.1", ""])
async def test_without_a_new_enough_node_it_says_how_to_get_one(whatsapp, tmp_path, managed, programs, version):
    if version:
        (programs / "node").write_text(f"#!/bin/sh\necho {version}\n")
    else:
        (programs / "node").unlink()
        if any((Path(folder) / "node").exists() for folder in ("/usr/bin", "/bin")):
            pytest.skip("there is one in /usr/bin")

    with pytest.raises(ChannelSetupError, match=r"WhatsApp needs Node\.js 20 or later") as raised:
        await whatsapp.channel(MessageBus(), **managed).login()

    assert version in str(raised.value)
    assert "Get it from https://nodejs.org" in str(raised.value)


async def test_login_runs_the_bridge_until_the_account_is_linked(whatsapp, tmp_path, managed, capsys):
    (tmp_path / "auth" / "creds.json").unlink()
    async with live(whatsapp, tmp_path, **managed) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert await life.channel.login()
    assert "Linked as +4930123456." in capsys.readouterr().out
    (pid,) = [int(pid) for pid, *_ in starts(tmp_path)]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_bridge_ends_when_the_gateway_is_killed(tmp_path, programs):
    (folder := tmp_path / "bridge").mkdir()
    variables = {"BRIDGE_STATE": str(tmp_path), "BRIDGE_TOKEN": "t", "AUTH_DIR": "x", "BRIDGE_PORT": str(free_port())}
    program = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from nanobot.channels.whatsapp.bridge import run_bridge\n"
        "async def main():\n"
        f"    async with run_bridge({str(programs / 'node')!r}, Path({str(folder)!r}), {variables!r}):\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    gateway = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    await eventually((tmp_path / "listens").exists)
    gateway.kill()
    await gateway.wait()
    pid = int(starts(tmp_path)[0][0])

    def has_ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    await eventually(has_ended)


def test_the_bridge_of_the_package_is_whole():
    names = {"bridge.mjs", "package.json", "package-lock.json"}

    assert names <= {path.name for path in SOURCE.iterdir()}
    assert "://" not in "".join((SOURCE / name).read_text() for name in names if name.endswith("lock.json"))
