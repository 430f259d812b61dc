"""Synapse on loopback, as a child process with a folder of its own: a homeserver that anybody can register at.

It is found by SYNAPSE, the path of `synapse_homeserver`, or on the PATH (`pip install matrix-synapse`, in a virtual
environment of its own).
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.eventually import wait_until
from tests.support.toy_gateway import free_port

PROGRAM = os.environ.get("SYNAPSE") or shutil.which("synapse_homeserver")
_FREE = {"per_second": 10_000, "burst_count": 10_000}


@contextmanager
def synapse() -> Iterator[str]:
    """Run it until the end of the block. Yields its URL."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(prefix="synapse-", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), free_port()
        (folder / "homeserver.yaml").write_text(json.dumps(_config(folder, port)), encoding="utf-8")
        output = folder / "output"
        with output.open("wb") as file:
            command = [PROGRAM, "-c", str(folder / "homeserver.yaml")]
            process = subprocess.Popen(command, stdout=file, stderr=file, cwd=folder)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: process.poll() is not None or _answers(url), 60)
            assert process.poll() is None, output.read_text(encoding="utf-8")[-2000:]
            yield url
        finally:
            process.kill()
            process.wait(10)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _config(folder: Path, port: int) -> dict[str, object]:
    """JSON is YAML."""
    limits = ["message", "registration", "joins_per_room", "media_create", "room_creation"]
    return {
        "server_name": "localhost",
        "listeners": [
            {"port": port, "bind_addresses": ["127.0.0.1"], "type": "http", "resources": [{"names": ["client"]}]}
        ],
        "database": {"name": "sqlite3", "args": {"database": str(folder / "homeserver.db")}},
        "media_store_path": str(folder / "media"),
        "signing_key": f"ed25519 key {base64.b64encode(os.urandom(32)).decode().rstrip('=')}",
        "macaroon_secret_key": "of this test",
        "form_secret": "of this test",
        "trusted_key_servers": [],
        "report_stats": False,
        "enable_registration": True,
        "enable_registration_without_verification": True,
        "bcrypt_rounds": 4,
        "presence": {"enabled": False},
        **{f"rc_{name}": _FREE for name in limits},
        "rc_login": {"address": _FREE, "account": _FREE},
        "rc_joins": {"local": _FREE, "remote": _FREE},
        "rc_invites": {"per_room": _FREE, "per_user": _FREE, "per_issuer": _FREE},
    }
