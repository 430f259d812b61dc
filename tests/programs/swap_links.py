"""Put a link where a folder or a file was, and back, 4,000 times, in one step each (man 2 renameat2, RENAME_EXCHANGE).

Arguments: the folder or file, the link, and what the link points to.
"""

import ctypes
import sys
import time
from pathlib import Path

inside, link, target = map(Path, sys.argv[1:])
rename = ctypes.CDLL(None).renameat2
for _ in range(4000):
    if rename(-100, bytes(inside), -100, bytes(link), 2):
        raise SystemExit("no exchange")
    time.sleep(0.00005)
    if not link.is_symlink() and not inside.is_symlink():
        link.unlink()
        link.symlink_to(target)
