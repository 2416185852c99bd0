"""Bookkeeping of a pool of many pages, per page: take, publish, find, share, release, evict.

Hashing is left out and stated in a row of its own. Processor time of the thread is counted, and
the collector is frozen meanwhile. Best of --repeats.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from hashlib import blake2b

from benchmarks.memory.table import Rows

from octavo.memory.cache import PageCache
from octavo.memory.draft import PageDraft
from octavo.memory.keys import extend_keys, root_key

_TABLE_PAGES = 256


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)


def measure(options: argparse.Namespace) -> Rows:
    best: dict[str, float] = {}
    for _ in range(options.repeats):
        for name, seconds in once(options.pages).items():
            best[name] = min(best.get(name, seconds), seconds)
    return [{"work": name, "microseconds_a_page": 1e6 * seconds} for name, seconds in best.items()]


def once(pages: int) -> dict[str, float]:
    """Seconds a page of each kind of work, over tables that fill the pool."""
    cache = PageCache(pages)
    count = pages // _TABLE_PAGES
    keys = [
        [blake2b(b"%d.%d" % (table, page)).digest()[:32] for page in range(_TABLE_PAGES)]
        for table in range(count)
    ]
    tables: list[list[int]] = []
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], object]) -> None:
        started = time.thread_time()
        work()
        seconds[name] = (time.thread_time() - started) / (count * _TABLE_PAGES)

    def take() -> None:
        for _ in range(count):
            table = PageDraft(cache).take(_TABLE_PAGES)
            cache.take(table)
            tables.append(table)

    def publish() -> None:
        for table, own in zip(tables, keys, strict=True):
            cache.publish_run(table, own, 0, _TABLE_PAGES)

    def find_and_share() -> None:
        for own in keys:
            cache.share(cache.look_up(own))

    def release() -> None:
        for table in tables:
            cache.release(table)

    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        timed("take (planned, then committed)", take)
        timed("publish", publish)
        timed("release to the cache", release)
        timed("find and share", find_and_share)
        timed("release again", release)
        tables.clear()
        timed("take by evicting", take)
    finally:
        gc.enable()
        gc.unfreeze()
    lifetime = sum(value for name, value in seconds.items() if name != "release again")
    seconds["a page's whole life, all of the above"] = lifetime
    started = time.thread_time()
    extend_keys([], root_key(b"", b""), range(32 * _TABLE_PAGES), 32)
    seconds["hashing a page of 32 tokens"] = (time.thread_time() - started) / _TABLE_PAGES
    return seconds
