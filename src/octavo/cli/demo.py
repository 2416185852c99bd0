"""`octavo demo`: start a server, ask it a question over HTTP, show how others would."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO

import click

from octavo.access.http.listen import bind
from octavo.cli.console import note, write
from octavo.cli.model import speed
from octavo.cli.remote import RemoteModel
from octavo.core.errors import EngineError, SettingsError
from octavo.core.sampling import SamplingParams
from octavo.core.settings import Settings

HOST = "127.0.0.1"
PORTS_TRIED = 20
QUESTION = "What is the capital of France? Answer in one sentence."
END_SECONDS = 60.0
_READY = "ready at "


@click.command("demo")
@click.argument("model", required=False)
@click.option("--question", default=QUESTION, show_default=True, help="What to ask.")
@click.option("--max-tokens", type=int, default=128, show_default=True, help="Longest answer.")
def command(model: str | None, question: str, max_tokens: int) -> None:
    """Serve MODEL (default: smollm2-135m) and ask it a question.

    On a terminal the server stays until Ctrl-C, otherwise it stops after the answer.
    """
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    with served(model, free_port()) as (server, url):
        write(f"\n> {question}\n\n")
        with RemoteModel(url).chat_stream(
            [{"role": "user", "content": question}], params
        ) as answer:
            for delta in answer:
                write(delta.text)
            write("\n")
            note(f"\n[{speed(answer.result())}]")
        write(instructions(url, question))
        if sys.stdout.isatty() and sys.stdin.isatty():
            with contextlib.suppress(KeyboardInterrupt):
                write("The server runs until Ctrl-C.\n")
                server.wait()


@contextlib.contextmanager
def served(model: str | None, port: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in another process, with its address; drained at the end.

    Raises:
        EngineError: it did not start (its own messages say why), or did not end cleanly.
    """
    arguments = ["serve", *([] if model is None else [model]), f"--host={HOST}", f"--port={port}"]
    program = "from octavo.cli.main import main; main()"
    server = subprocess.Popen(
        [sys.executable, "-P", "-c", program, *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        yield server, _until_ready(server.stderr)
    finally:
        # Ctrl-C reaches both processes; a second signal of this kind changes nothing.
        with contextlib.suppress(ProcessLookupError):
            server.send_signal(signal.SIGTERM)
        try:
            status = server.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            status = server.wait()
    if status != 0:
        raise EngineError(f"the server ended with status {status}")


def _until_ready(messages: IO[str]) -> str:
    """Show what the server says until it says where it is."""
    for line in messages:
        note(line.rstrip("\n"))
        if line.startswith(_READY):
            reader = threading.Thread(target=_show, args=(messages,), daemon=True)
            reader.start()
            return line.removeprefix(_READY).strip()
    raise EngineError("the server did not start", remedy="its messages are above")


def _show(messages: IO[str]) -> None:
    for line in messages:
        note(line.rstrip("\n"))


def free_port() -> int:
    """The default port, or the next one that nobody has.

    Raises:
        SettingsError: many in a row are taken.
    """
    first = Settings().server.http_port
    for port in range(first, first + PORTS_TRIED - 1):
        try:
            bind(HOST, port).close()
        except SettingsError:
            continue
        return port
    with bind(HOST, 0) as listener:
        return int(listener.getsockname()[1])


def instructions(url: str, question: str) -> str:
    """How to ask the same with curl and with the OpenAI client."""
    body = json.dumps({"messages": [{"role": "user", "content": question}], "stream": True})
    quoted = body.replace("'", "'\\''")
    return f"""
Ask with curl:

  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{quoted}'

or with the OpenAI client (pip install openai):

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  answer = client.chat.completions.create(
      model=client.models.list().data[0].id,
      messages=[{{"role": "user", "content": {json.dumps(question)}}}],
  )
  print(answer.choices[0].message.content)

"""
