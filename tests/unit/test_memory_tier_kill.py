"""A writer that is killed at any moment leaves a cache in which every page is right or missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

KILLS = 50

PROGRAM = '''
import os, random, signal, sys, time
from pathlib import Path
from octavo.memory.tiers.disk import DiskTier

PAGE_BYTES = 70_000
root, kills = Path(sys.argv[1]), int(sys.argv[2])

def key(number):
    return number.to_bytes(32, "big")

def page(number):
    return memoryview(random.Random(number).randbytes(PAGE_BYTES))

def opened():
    return DiskTier(root, bytes(32), page_bytes=PAGE_BYTES, most_bytes=3_000_000)

def write():
    """Store for ever, over old pages too, in another order each time."""
    tier, rng = opened(), random.Random(os.getpid())
    contents = [page(number) for number in range(60)]
    os.write(ready, b"r")
    while True:
        number = rng.randrange(60)
        tier.drop(key(number)) if rng.random() < 0.3 else tier.store(key(number), contents[number])
        if rng.random() < 0.1:
            tier.settle()

rng = random.Random(7)
found = wrong = damaged = 0
out = memoryview(bytearray(PAGE_BYTES))
for _ in range(kills):
    begun, ready = os.pipe()
    child = os.fork()
    if child == 0:
        write()
    os.read(begun, 1)
    time.sleep(rng.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(begun), os.close(ready)
    tier = opened()
    for number in range(60):
        if tier.load(key(number), out):
            found += 1
            wrong += out != page(number)
    damaged += tier.counters.damaged
    tier.close()
print(found, wrong, damaged)
'''


def test_kill_at_any_moment(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(KILLS)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found, wrong, _ = map(int, finished.stdout.split())
    assert wrong == 0
    assert found > KILLS
