"""Opens and leaves thousands of streams; afterwards the server must be as it was before.

    python benchmarks/abort_storm.py http://127.0.0.1:8000 --streams 10000 --json storm.json

Some leave in the queue, some while their prompt is computed, some after a few tokens. A neighbour
asks the same greedy question throughout; its text must not change. Exit status 1 if anything stays
behind: requests, pages, open connections of the server, or a changed text. Standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

NEIGHBOUR = {"prompt": "Once upon a time", "max_tokens": 48, "temperature": 0, "ignore_eos": True}
IDLE_SECONDS = 120.0


def post(url: str, body: object) -> dict[str, object]:
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def text_of(answer: dict[str, object]) -> str:
    return str(answer["choices"][0]["text"])  # type: ignore[index]


def metrics(url: str) -> dict[str, float]:
    """Samples by name and labels, as the page writes them."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def total(samples: dict[str, float], name: str) -> float:
    return sum(value for key, value in samples.items() if re.match(rf"{name}(\{{|$)", key))


def busy(url: str) -> float:
    """Open calls, queued and running requests, and held pages."""
    samples = metrics(url)
    held = sum(value for key, value in samples.items() if 'state="held"' in key)
    names = ("octavo_open_calls", "octavo_waiting", "octavo_running")
    return held + sum(total(samples, name) for name in names)


async def leave_early(host: str, port: int, number: int) -> bytes:
    """One stream: hang up after its first token (one in eight), or up to 0.2 s after its first
    comment, which is in the queue or the middle of its prompt."""
    waits_for_token = number % 8 == 1
    prompt = [5 + number % 97] * (600 if number % 4 == 0 else 8)
    body = json.dumps({"prompt": prompt, "max_tokens": 256, "ignore_eos": True, "stream": True})
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}".encode()
        )
        seen = b""
        wanted = b"data: " if waits_for_token else b": ping"
        while wanted not in seen:
            part = await reader.read(65536)
            if not part:
                break
            seen += part
        if not waits_for_token:
            await asyncio.sleep(random.Random(number).uniform(0.0, 0.2))
        return seen
    finally:
        writer.transport.abort()


async def storm(url: str, streams: int, at_once: int) -> int:
    """How many streams were refused."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    host, port = parts.hostname, parts.port or 80
    gate = asyncio.Semaphore(at_once)
    refused = done = 0
    next_shown = time.monotonic() + 5

    async def one(number: int) -> None:
        nonlocal refused, done, next_shown
        async with gate:
            seen = await leave_early(host, port, number)
        refused += not seen.startswith(b"HTTP/1.1 200")
        done += 1
        if time.monotonic() > next_shown:
            next_shown += 5
            print(f"{done} of {streams} streams", file=sys.stderr)

    await asyncio.gather(*(one(number) for number in range(streams)))
    return refused


async def ask_on(url: str, over: asyncio.Event) -> list[str]:
    texts = []
    while not over.is_set():
        texts.append(text_of(await asyncio.to_thread(post, url, NEIGHBOUR)))
    return texts


async def measure(url: str, streams: int, at_once: int, process: int | None) -> dict[str, object]:
    alone = text_of(post(url, NEIGHBOUR))
    await storm(url, min(streams, 200), at_once)
    wait_idle(url)
    before = process_numbers(process)
    over = asyncio.Event()
    neighbour = asyncio.create_task(ask_on(url, over))
    started = time.monotonic()
    refused = await storm(url, streams, at_once)
    seconds = time.monotonic() - started
    over.set()
    texts = await neighbour
    idle_seconds = wait_idle(url)
    return {
        "streams": streams,
        "at_once": at_once,
        "refused": refused,
        "seconds": round(seconds, 2),
        "idle_after_seconds": idle_seconds,
        "neighbour_answers": len(texts),
        "neighbour_unchanged": all(text == alone for text in texts),
        "left_behind": busy(url),
        "before": before,
        "after": process_numbers(process),
    }


def wait_idle(url: str) -> float | None:
    """Seconds until the server held nothing; None if it went on holding something."""
    started = time.monotonic()
    while time.monotonic() - started < IDLE_SECONDS:
        if busy(url) == 0:
            return round(time.monotonic() - started, 2)
        time.sleep(0.2)
    return None


def process_numbers(process: int | None) -> dict[str, int] | None:
    """Descriptors, threads and resident bytes of the frontend, if its process id was given."""
    if process is None:
        return None
    folder = Path(f"/proc/{process}")
    status = (folder / "status").read_text()
    numbers = {
        name: int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("Threads", "VmRSS")
    }  # type: ignore[index]
    descriptors = len(list((folder / "fd").iterdir()))
    return {
        "descriptors": descriptors,
        "threads": numbers["Threads"],
        "resident_bytes": numbers["VmRSS"] * 1024,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="address of an octavo server, e.g. http://127.0.0.1:8000")
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--process", type=int, help="process id of the server, on this machine")
    parser.add_argument("--json", type=Path, help="also write the result here")
    options = parser.parse_args()
    result = asyncio.run(
        measure(options.url.rstrip("/"), options.streams, options.at_once, options.process)
    )
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    clean = result["left_behind"] == 0 and result["neighbour_unchanged"] and not result["refused"]
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
