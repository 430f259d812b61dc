"""Dovecot and Postfix on loopback, as child processes with configurations and queues of their own.

Postfix takes mails for bot.test and friends.test and hands them to maildirs that Dovecot serves; who logs in (by
Dovecot) may send. Before a mail from outside is taken, a policy server (postfix.org/SMTPD_POLICY_README.html) does
what an SPF checker does: it writes what it found above the mail. Here a host is known by the name it greets with, since
all have the same address. Both programs must run as root, and then only their own unprivileged users touch mails.
"""

import asyncio
import os
import shutil
import signal
import smtplib
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.toy_gateway import free_port

PASSWORD = "mail password"
SPF = {"friends.test": "mail.friends.test"}
"""Which host may send mails of a domain."""
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_POSTFIX = Path("/usr/lib/postfix/sbin")


def missing() -> str:
    """What keeps them from running here; empty where nothing does."""
    for program in ("dovecot", "postfix", "openssl"):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
            return f"{program} is not installed"
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "Postfix runs only as root"
    return "" if _POSTFIX.is_dir() else f"there is no {_POSTFIX}"


@dataclass(frozen=True)
class MailServers:
    """Where they are."""

    folder: Path
    imaps_port: int
    imap_port: int
    smtp_port: int

    @property
    def ca_file(self) -> Path:
        """Who says that they are who they are."""
        return self.folder / "ca.pem"

    def submit(self, raw: bytes, *, sender: str, to: str, host: str = "somewhere.test") -> None:
        """A host of that name hands over a mail."""
        with smtplib.SMTP("127.0.0.1", self.smtp_port, local_hostname=host, timeout=10) as smtp:
            smtp.sendmail(sender, [to], raw)

    def sweep(self) -> None:
        """Empty the mailboxes."""
        for path in (self.folder / "mails").glob("*/[nc][eu][wr]/*"):
            path.unlink()

    def mails(self, address: str) -> list[bytes]:
        """What lies in a mailbox, oldest first."""
        folder = self.folder / "mails" / address
        found = [path for part in ("new", "cur") for path in (folder / part).glob("*")]
        return [path.read_bytes() for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)]


@contextmanager
def mail_servers() -> Iterator[MailServers]:
    """Run them until the end of the block; see `missing` first."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mail-", ignore_cleanup_errors=True)))
        folder.chmod(0o755)  # their users have to get in
        imaps, imap, smtp, policy = (free_port() for _ in range(4))
        _write_certificates(folder)
        _write_dovecot(folder, imaps, imap)
        _write_postfix(folder, smtp, policy)
        stack.enter_context(_spf_checker(policy))
        stack.enter_context(_running(["dovecot", "-F", "-c", str(folder / "dovecot.conf")], folder / "dovecot.out"))
        _wait_for(folder / "auth-for-postfix", imaps, folder)
        subprocess.run(["postfix", "-c", str(folder / "postfix"), "check"], check=True, env=_ENVIRONMENT)
        master = [str(_POSTFIX / "master"), "-s", "-c", str(folder / "postfix")]
        stack.enter_context(_running(master, folder / "postfix.out"))
        _wait_for(None, smtp, folder)
        yield MailServers(folder, imaps, imap, smtp)


def _ids_of(user: str) -> tuple[int, int]:
    import pwd  # where there is Postfix, there is this

    found = pwd.getpwnam(user)
    return found.pw_uid, found.pw_gid


def _write_certificates(folder: Path) -> None:
    ask = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=mail -addext"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    out = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "ca.pem")]
    subprocess.run(["openssl", *ask.split(), names, *out], check=True, capture_output=True)


def _write_dovecot(folder: Path, port: int, plain_port: int) -> None:
    uid, gid = _ids_of("mail")
    (folder / "mails").mkdir()
    os.chown(folder / "mails", uid, gid)
    people = (f"{name}:{{PLAIN}}{PASSWORD}\n" for name in ("bot@bot.test", "anna@friends.test"))
    (folder / "users").write_text("".join(people))
    (folder / "dovecot.conf").write_text(
        f"""
base_dir = {folder}/run
state_dir = {folder}/state
log_path = {folder}/dovecot.log
instance_name = nanobot-tests
protocols = imap
listen = 127.0.0.1
ssl = required
ssl_cert = <{folder}/ca.pem
ssl_key = <{folder}/key.pem
auth_mechanisms = plain login
auth_failure_delay = 0
mail_location = maildir:{folder}/mails/%u
mail_uid = {uid}
mail_gid = {gid}
first_valid_uid = {uid}
passdb {{
  driver = passwd-file
  args = {folder}/users
}}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={folder}/mails/%u
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {plain_port}
  }}
  inet_listener imaps {{
    port = {port}
    ssl = yes
  }}
}}
service auth {{
  unix_listener {folder}/auth-for-postfix {{
    mode = 0666
  }}
}}
service anvil {{
  unix_listener anvil-auth-penalty {{
    mode = 0
  }}
}}
service stats {{
  chroot =
}}
"""
    )


def _write_postfix(folder: Path, port: int, policy: int) -> None:
    uid, gid = _ids_of("mail")
    for name in ("postfix", "queue", "data"):
        (folder / name).mkdir()
    os.chown(folder / "data", *_ids_of("postfix"))
    (folder / "postfix" / "main.cf").write_text(
        f"""
compatibility_level = 3.6
queue_directory = {folder}/queue
data_directory = {folder}/data
command_directory = /usr/sbin
daemon_directory = {_POSTFIX}
maillog_file = /dev/stdout
maillog_file_prefixes = /dev
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
myhostname = mx.bot.test
mydestination =
mynetworks =
alias_maps =
local_recipient_maps =
smtpd_sasl_auth_enable = yes
smtpd_sasl_type = dovecot
smtpd_sasl_path = {folder}/auth-for-postfix
smtpd_tls_cert_file = {folder}/ca.pem
smtpd_tls_key_file = {folder}/key.pem
smtpd_tls_security_level = may
smtpd_tls_auth_only = yes
smtpd_error_sleep_time = 0
smtpd_recipient_restrictions = permit_sasl_authenticated,
  check_policy_service inet:127.0.0.1:{policy}, reject_unauth_destination
virtual_mailbox_domains = bot.test, friends.test
virtual_mailbox_base = {folder}/mails
virtual_mailbox_maps = inline:{{ bot@bot.test=bot@bot.test/, anna@friends.test=anna@friends.test/ }}
virtual_uid_maps = static:{uid}
virtual_gid_maps = static:{gid}
virtual_minimum_uid = {uid}
"""
    )
    (folder / "postfix" / "master.cf").write_text(
        f"""
127.0.0.1:{port} inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
proxymap unix - - n - - proxymap
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
virtual unix - n n - - virtual
anvil unix - - n - 1 anvil
postlog unix-dgram n - n - 1 postlogd
"""
    )


@contextmanager
def _running(command: list[str], out: Path) -> Iterator[None]:
    """A program and its children, until the end of the block."""
    with out.open("wb") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, env=_ENVIRONMENT, start_new_session=True)
    try:
        yield
    finally:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(2)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(5)


def _wait_for(path: Path | None, port: int, folder: Path) -> None:
    until = time.monotonic() + 15
    while time.monotonic() < until:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            if path is None or path.exists():
                return
        time.sleep(0.02)
    said = "\n".join(log.read_text(errors="replace")[-2000:] for log in [*folder.glob("*.out"), *folder.glob("*.log")])
    raise AssertionError(f"a mail server does not come up:\n{said}")


@contextmanager
def _spf_checker(port: int) -> Iterator[None]:
    """The policy server, in a thread of its own."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told: dict[str, str] = {}
        while line := (await reader.readline()).decode(errors="replace"):
            name, _, value = line.rstrip("\n").partition("=")
            told[name] = value
            if not name:
                domain = told.get("sender", "").rpartition("@")[2]
                result = "pass" if SPF.get(domain) == told.get("helo_name") else "fail"
                found = f"Authentication-Results: mx.bot.test; spf={result} smtp.mailfrom={told.get('sender', '')}"
                writer.write(f"action=PREPEND {found}\n\n".encode())
                told.clear()
        writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", port):
            ready.set()
            while not done.is_set():
                await asyncio.sleep(0.05)

    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    ready.wait(5)
    try:
        yield
    finally:
        done.set()
        thread.join(5)
