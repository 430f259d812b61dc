"""One log for all: what an SDK says through the standard library stands in our file, beside our own words."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import logging, sys
from pathlib import Path
from nanobot.utils.log import LogTarget, set_up_logging

set_up_logging(LogTarget(file=Path(sys.argv[1]) / "logs" / "gateway.log"))
logging.getLogger("telegram.ext").warning("the network is gone")
logging.getLogger("nanobot.agent").info("a turn ended")
logging.getLogger("httpx").info("GET https://example.org?token=1")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("slack_sdk").exception("a listener broke")
"""


def test_what_an_sdk_logs_is_in_our_log_with_its_name_and_its_traceback(tmp_path: Path):
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True)

    log = tmp_path / "logs" / "gateway.log"
    text = log.read_text(encoding="utf-8")
    assert "WARNING telegram.ext the network is gone" in text
    assert "INFO    nanobot.agent a turn ended" in text
    assert "slack_sdk a listener broke" in text
    assert "ZeroDivisionError" in text
    assert "token=1" not in text
    if sys.platform != "win32":
        assert log.stat().st_mode & 0o077 == 0


def test_the_reason_of_a_failure_is_logged_without_its_number(tmp_path: Path):
    program = PROGRAM.partition("logging.getLogger")[0]
    program += "logging.getLogger('bot').warning('no answer (%s)', OSError(111, 'Connection refused'))"

    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)

    text = (tmp_path / "logs" / "gateway.log").read_text(encoding="utf-8")
    assert "no answer (Connection refused)" in text


TELLER = """
import logging, sys
from pathlib import Path
from nanobot.security.secrets import redact_all, secrets_scope
from nanobot.utils.log import LogTarget, set_up_logging

set_up_logging(LogTarget(Path(sys.argv[1]) / "gateway.log", "DEBUG", "DEBUG"), redact_all)
with secrets_scope(lambda: {"a secret of ours": "a.key"}):
    logging.getLogger("httpcore").debug("headers: %r", [(b"authorization", b"a secret of ours")])
    logging.getLogger("nanobot").warning("sent with sk-abcdefghijklmnop")
    try:
        raise ValueError("a secret of ours")
    except ValueError:
        logging.getLogger("nanobot").exception("a listener broke")
"""


def test_no_record_holds_a_secret_nor_does_its_traceback(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", TELLER, str(tmp_path)], check=True, capture_output=True)

    text = (tmp_path / "gateway.log").read_text(encoding="utf-8") + done.stderr.decode()
    assert "of ours" not in text
    assert "sk-abc" not in text
    assert text.count("ValueError: [key]") == 2


STEERER = """
import logging, sys
from pathlib import Path
from nanobot.utils.log import LogTarget, set_up_logging

set_up_logging(LogTarget(Path(sys.argv[1]) / "gateway.log", "INFO", "INFO"))
logging.getLogger("nanobot").warning("%s came", "Ann\\x1b]0;mine\\x07\\x9b2J\\ud83d\\n2026-01-01 INFO all is well")
try:
    raise ValueError("\\x1b[2J")
except ValueError:
    logging.getLogger("nanobot").exception("a listener broke")
"""


def test_nobodys_name_steers_the_terminal_a_log_is_read_in_or_writes_a_record_of_its_own(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", STEERER, str(tmp_path)], check=True, capture_output=True)

    text = (tmp_path / "gateway.log").read_text(encoding="utf-8")
    assert "Ann\\x1b]0;mine\\x07\\x9b2J\\ud83d\n  2026-01-01" in text
    assert "  ValueError: \\x1b[2J" in text
    assert not {"\x1b", "\x07", "\x9b"} & {*text, *done.stderr.decode()}


TALKER = """
import logging, sys
from pathlib import Path
from nanobot.utils.log import LogTarget, set_up_logging

set_up_logging(LogTarget(Path(sys.argv[1]) / "gateway.log", "INFO", "INFO"))
for number in range(300):
    logging.getLogger("nanobot").info("%d %s", number, "x" * 500)
"""


def test_a_stderr_that_nobody_reads_stops_nobody(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", TALKER, str(tmp_path)], stderr=subprocess.PIPE) as talker:
        assert talker.wait(20) == 0
        assert talker.stderr is not None
        shown = talker.stderr.read().decode()

    assert "nanobot 0 xxx" in shown
    assert "nanobot 299 xxx" in (tmp_path / "gateway.log").read_text(encoding="utf-8")
