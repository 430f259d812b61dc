"""What programs that we start may know of our environment: what programs need to run, and no keys."""

from collections.abc import Collection, Mapping

_NEEDED = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    # what programs on Windows do not start without
    "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERPROFILE", "HOMEDRIVE", "HOMEPATH",
    "USERNAME", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES", "PROGRAMFILES(X86)", "NUMBER_OF_PROCESSORS",
    "PROCESSOR_ARCHITECTURE",
})  # fmt: skip


def needed_of(ours: Mapping[str, str], also: Collection[str] = ()) -> dict[str, str]:
    """What programs need of it, and what is named besides, in capitals."""
    return {
        name: value
        for name, value in ours.items()
        if name.upper() in _NEEDED or name.upper() in also or name.startswith("LC_")
    }
