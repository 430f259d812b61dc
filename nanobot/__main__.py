"""Process entry point: UTF-8 streams, no traceback without --debug, fast exit."""

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import NoReturn

from nanobot.utils.garbage import delay_collection


def main() -> NoReturn:
    """Run the command, flush and exit.

    Uses `os._exit` after everything was closed in order: interpreter shutdown takes up to a second once LiteLLM is
    loaded.
    """
    delay_collection()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them takes 30 ms
    _use_utf8()
    _disable_core_dumps()
    code = _run()
    flush_code = _flush(quiet=code != 0)
    os._exit(code or flush_code)


def _use_utf8() -> None:
    """Use UTF-8 whatever the locale: escape unencodable output, replace undecodable input."""
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):  # None if the stream is closed
            stream.reconfigure(encoding="utf-8", errors=errors)


def _disable_core_dumps() -> None:
    """A core dump would contain API keys."""
    with suppress(ImportError, OSError, ValueError):  # not available on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _flush(*, quiet: bool) -> int:
    """Flush the output. Return 1 if that fails, and print an error unless `quiet`."""
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except BrokenPipeError:  # the reader closed the pipe
        return 0
    except OSError as error:
        if not quiet:
            with suppress(OSError):
                os.write(2, f"Error: the output could not be written: {error.strerror}.\n".encode())
        return 1
    return 0


def _run() -> int:
    """Run the command and return its exit code."""
    if os.path.expanduser("~") == "~":  # noqa: PTH111 - pathlib raises
        print("Error: your user has no home folder. Set HOME to a folder that you own.", file=sys.stderr)  # noqa: T201
        return 78
    try:
        from nanobot.cli.main import app  # inside `try`, so that Ctrl+C during the import is quiet too

        app()
    except SystemExit as exit_error:
        return exit_error.code if isinstance(exit_error.code, int) else int(exit_error.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1
    except Exception as error:  # unexpected errors
        with suppress(OSError):  # stderr may be closed
            _print_traceback(error) if "--debug" in sys.argv else _print_bug_report(error)
        return getattr(error, "exit_code", 1)
    return 0


def _print_traceback(error: Exception) -> None:
    import traceback

    from nanobot.security.secrets import redact_all

    print(redact_all("".join(traceback.format_exception(error))), end="", file=sys.stderr)  # noqa: T201


def _print_bug_report(error: Exception) -> None:
    from nanobot.security.secrets import redact_all

    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    location = f", {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else ""  # noqa: PTH119
    summary = redact_all(f"{type(error).__name__}: {error}")
    print(f"Error: this is a bug in nanobot: {summary}{location}", file=sys.stderr)  # noqa: T201
    print("Run it again with --debug and report the traceback.", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
