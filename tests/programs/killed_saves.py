"""Save a config file (the argument) in fifteen processes that are killed while they save; print the last port."""

import os
import random
import signal
import sys
import time

from nanobot.config.loader import load_config, save_config
from nanobot.config.schema import ApiConfig, Config

path, chance = sys.argv[1], random.Random(7)
save_config(Config(api=ApiConfig(port=1)), path)
for _ in range(15):
    saved, tell = os.pipe()
    child = os.fork()
    if child == 0:
        config = load_config(path)
        while True:
            config.api.port += 1
            save_config(config)
            os.write(tell, b".")
    os.read(saved, 1)
    time.sleep(chance.uniform(0, 0.006))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(saved)
    os.close(tell)
    load_config(path, must_exist=True)
print(load_config(path).api.port)
