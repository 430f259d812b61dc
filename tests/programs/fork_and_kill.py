"""Kill processes at random moments, each going on where the one before was.

Arguments: a module of tests.programs, the folder, the number of kills, the seed, and the shortest and longest life in
seconds. The module's `main(folder, number)` writes a line with the number of each turn that is acknowledged; this
program prints these numbers.
"""

import asyncio
import importlib
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

name, folder, kills, seed, shortest_s, longest_s = sys.argv[1:]
main = importlib.import_module(f"tests.programs.{name}").main
chance = random.Random(int(seed))
first = 0
for _ in range(int(kills)):
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writable, 1)
        asyncio.run(main(Path(folder), first))
        os._exit(1)
    os.close(writable)
    if chance.random() < 0.5:  # a busy machine kills the others before they have said anything
        select.select([readable], [], [], 10)
    time.sleep(chance.uniform(float(shortest_s), float(longest_s)))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    acknowledged = b""
    while part := os.read(readable, 65536):
        acknowledged += part
    os.close(readable)
    numbers = [int(number) for number in acknowledged.split()]
    print(*numbers, flush=True)
    first = (numbers[-1] if numbers else first) + 2
