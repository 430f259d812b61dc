"""Where the process begins and ends: UTF-8 everywhere, no traceback unless asked for, a quick way out."""

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import NoReturn

from nanobot.utils.garbage import a_process_starts


def main() -> NoReturn:
    """Run the command on the command line, flush, and leave at once.

    The way out is `os._exit`, after everything of ours was closed in order: tearing down the interpreter frees
    what the system frees anyway, and takes up to a second once LiteLLM was loaded.
    """
    a_process_starts()
    _speak_utf8()
    _leave_no_core()
    code = _run()
    unsaid = _flush(quiet=code != 0)
    os._exit(code or unsaid)


def _speak_utf8() -> None:
    """Whatever the locale says. What no UTF-8 can say is shown as an escape, what is none is read as a mark."""
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):  # a closed one is None
            stream.reconfigure(encoding="utf-8", errors=errors)


def _leave_no_core() -> None:
    """A crash writes no picture of our memory into the folder we are in: there are keys in it."""
    with suppress(ImportError, OSError, ValueError):  # Windows knows no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _flush(*, quiet: bool) -> int:
    """See the last words out; 1 where the disk did not take them, which is said unless an error was told already."""
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except BrokenPipeError:  # the reader has seen enough
        return 0
    except OSError as error:
        if not quiet:
            with suppress(OSError):
                os.write(2, f"Error: the output could not be written: {error.strerror}.\n".encode())
        return 1
    return 0


def _run() -> int:
    """The exit code of the command."""
    try:
        from nanobot.cli.commands import app  # inside, so that Ctrl+C during the import is quiet too

        app()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1
    except Exception as error:  # the last wall: what arrives here, nobody foresaw
        with suppress(OSError):  # nobody can be told
            _tell(error) if "--debug" in sys.argv else _confess(error)
        return getattr(error, "exit_code", 1)
    return 0


def _tell(error: Exception) -> None:
    """Everything about it, but no key."""
    import traceback

    from nanobot.security.vault import cleaned

    print(cleaned("".join(traceback.format_exception(error))), end="", file=sys.stderr)  # noqa: T201


def _confess(error: Exception) -> None:
    """It is our bug; say where, and how to see more."""
    from nanobot.security.vault import cleaned

    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f", {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else ""  # noqa: PTH119
    said = cleaned(f"{type(error).__name__}: {error}")
    print(f"Error: this is a bug in nanobot: {said}{where}", file=sys.stderr)  # noqa: T201
    print("Run it again with --debug and report the traceback.", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
