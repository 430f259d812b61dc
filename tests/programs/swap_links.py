"""Put a link where a folder or a file was, and back, many times, in one step each (man 2 renameat2, RENAME_EXCHANGE).

Arguments: the folder or file, the link, what the link points to, and how often.
"""

import ctypes
import sys
import time
from pathlib import Path

inside, link, target = map(Path, sys.argv[1:4])
rename = ctypes.CDLL(None).renameat2
for _ in range(int(sys.argv[4])):
    if rename(-100, bytes(inside), -100, bytes(link), 2):
        raise SystemExit("no exchange")
    time.sleep(0.00005)
    if not link.is_symlink() and not inside.is_symlink():
        link.unlink()
        link.symlink_to(target)
