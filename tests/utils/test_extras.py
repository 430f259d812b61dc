import subprocess
import sys

import pytest

from nanobot.utils.installation import install_command


@pytest.mark.skipif(sys.platform == "win32", reason="the quotes are those of a POSIX shell")
def test_what_is_typed_reaches_the_interpreter_that_runs_here():
    shown = install_command("docs").replace(" -m pip install", " -c 'import sys; print(sys.argv[1:], sys.prefix)'")

    said = subprocess.run(shown, shell=True, capture_output=True, text=True, check=True).stdout

    assert said.strip() == f"['nanobot[docs]'] {sys.prefix}"
