"""The environment of child processes: what programs need to run, and no keys."""

from collections.abc import Collection, Mapping

_NEEDED = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    # required to start programs on Windows
    "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERPROFILE", "HOMEDRIVE", "HOMEPATH",
    "USERNAME", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES", "PROGRAMFILES(X86)", "NUMBER_OF_PROCESSORS",
    "PROCESSOR_ARCHITECTURE",
})  # fmt: skip


def child_environment(ours: Mapping[str, str], also: Collection[str] = ()) -> dict[str, str]:
    """The variables that programs need, and those named in `also`, in capitals."""
    return {
        name: value
        for name, value in ours.items()
        if name.upper() in _NEEDED or name.upper() in also or name.startswith("LC_")
    }
