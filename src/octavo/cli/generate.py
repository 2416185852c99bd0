"""`octavo generate`: complete a prompt."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from octavo.cli.console import note, write
from octavo.cli.model import opened, profiled, speed
from octavo.cli.options import (
    explained,
    load,
    sampling_options,
    sampling_params,
    settings_options,
)
from octavo.core.errors import EngineError, InvalidRequest
from octavo.core.sampling import SamplingParams

if TYPE_CHECKING:
    from octavo.engine.llm import LLM
    from octavo.engine.outputs import RequestOutput

MAX_TEXT_BYTES = 64 << 20
"""More than any context holds; its ids take some 100 bytes each while a text is cut into them."""


@click.command("generate")
@click.argument("model", required=False)
@click.option("-p", "--prompt", help="The prompt.")
@click.option("--file", "prompt_file", type=click.Path(), help="A UTF-8 file with the prompt.")
@sampling_options(max_tokens=256)
@click.option("--n", type=int, default=1, show_default=True, help="Answers to give.")
@click.option("--logprobs", type=int, help="With --json: log-probabilities, and the k likeliest.")
@click.option("--prompt-logprobs", type=int, help="With --json: the same for the prompt's tokens.")
@click.option("--stream/--no-stream", default=None, help="Show text as it comes (default).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --stream a line a piece.")
@click.option("-q", "--quiet", is_flag=True, help="Only the answer, no status lines.")
@click.option("--profile", is_flag=True, help="Say where the time went, by kind of operation.")
@settings_options()
def command(
    model: str | None,
    prompt: str | None,
    prompt_file: str | None,
    stream: bool | None,
    as_json: bool,
    quiet: bool,
    profile: bool,
    config: str | None,
    assignments: tuple[str, ...],
    show_settings: bool,
    **sampling: Any,
) -> None:
    """Complete a prompt with MODEL (default: smollm2-135m).

    The prompt comes from -p, from --file, or from standard input, and is taken as it is: no chat
    template, no line end removed. `octavo chat` is for questions.
    """
    loaded = load(config, assignments, model)
    if explained(loaded, show_settings):
        return
    params = sampling_params(**sampling)
    _check_output(params, stream, as_json)
    text = _prompt(prompt, prompt_file)
    streaming = stream if stream is not None else not as_json and params.n == 1
    with opened(loaded.settings, quiet=quiet) as llm:
        with profiled(llm) if profile else nullcontext():
            output = _run(llm, text, params, streaming, as_json)
        _show(output, streaming, as_json)
        if not quiet:
            note(speed(output))
    for choice in output.outputs:
        if choice.error is not None:
            raise EngineError(choice.error)


def _check_output(params: SamplingParams, stream: bool | None, as_json: bool) -> None:
    if not as_json:
        if params.logprobs is not None or params.prompt_logprobs is not None:
            raise click.UsageError("log-probabilities are shown with --json only")
        if stream and params.n > 1:
            raise click.UsageError("several answers are streamed with --json only")


def _prompt(prompt: str | None, prompt_file: str | None) -> str:
    if prompt is not None and prompt_file is not None:
        raise click.UsageError("give --prompt or --file, not both")
    if prompt is not None:
        return prompt
    if prompt_file is None:
        if sys.stdin.isatty():
            raise click.UsageError("no prompt: use -p, --file or standard input")
        return read_stream(sys.stdin.buffer, "standard input")
    return read_text(prompt_file)


def read_text(path: str) -> str:
    """A UTF-8 file.

    Raises:
        InvalidRequest: it cannot be read, is too long or is not UTF-8.
    """
    try:
        with Path(path).open("rb") as file:
            return read_stream(file, path)
    except (OSError, ValueError) as error:  # a name with a NUL is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"cannot be read: {reason}", field=path) from error


def read_stream(stream: BinaryIO, source: str) -> str:
    """UTF-8 text up to the end of a stream, which must come within `MAX_TEXT_BYTES`."""
    data = stream.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise InvalidRequest(
            f"is longer than {MAX_TEXT_BYTES >> 20} MiB", field=source, remedy="give a part of it"
        )
    return decode(data, source)


def decode(data: bytes, source: str) -> str:
    """UTF-8 text; the error names the first wrong byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"is not UTF-8: byte {data[error.start]:#04x} at offset {error.start}", field=source
        ) from error


def _run(
    llm: LLM, text: str, params: SamplingParams, streaming: bool, as_json: bool
) -> RequestOutput:
    if not streaming:
        return llm.generate(text, params)[0]
    with llm.stream(text, params) as stream:
        for delta in stream:
            if as_json:
                click.echo(json.dumps({"type": "delta", **_delta_json(delta)}))
            else:
                write(delta.text)
        return stream.result()


def _show(output: RequestOutput, streamed: bool, as_json: bool) -> None:
    if as_json:
        result = output_json(output)
        click.echo(json.dumps({"type": "result", **result} if streamed else result))
    elif streamed:
        write("\n")
    elif len(output.outputs) == 1:
        write(output.text + "\n")
    else:
        for choice in output.outputs:
            write(f"--- answer {choice.index + 1} of {len(output.outputs)}\n{choice.text}\n")


def _delta_json(delta: Any) -> dict[str, Any]:
    return {
        "index": delta.index,
        "text": delta.text,
        "token_ids": list(delta.token_ids),
        "logprobs": [_entry_json(entry) for entry in delta.logprobs],
        "finish_reason": delta.finish_reason.value if delta.finish_reason else None,
    }


def output_json(output: RequestOutput) -> dict[str, Any]:
    """A whole answer for machines; token bytes are lists of numbers, as they need not be text."""
    return {
        "prompt": output.prompt,
        "prompt_token_ids": list(output.prompt_token_ids),
        "prompt_logprobs": _entries_json(output.prompt_logprobs),
        "outputs": [
            {
                "index": choice.index,
                "text": choice.text,
                "token_ids": list(choice.token_ids),
                "finish_reason": choice.finish_reason.value,
                "stopped_by": choice.stopped_by,
                "logprobs": _entries_json(choice.logprobs),
                "error": choice.error,
            }
            for choice in output.outputs
        ],
        "usage": {
            "prompt_tokens": output.usage.prompt_tokens,
            "completion_tokens": output.usage.completion_tokens,
            "cached_tokens": output.usage.cached_tokens,
        },
        "timing": {
            "first_token_seconds": output.timing.first_token_seconds,
            "total_seconds": output.timing.total_seconds,
        },
    }


def _entries_json(entries: Any) -> list[Any] | None:
    if entries is None:
        return None
    return [None if entry is None else _entry_json(entry) for entry in entries]


def _entry_json(entry: Any) -> dict[str, Any]:
    return {
        "token_id": entry.token_id,
        "bytes": list(entry.token_bytes),
        "logprob": entry.logprob,
        "top": [
            {"token_id": one.token_id, "bytes": list(one.token_bytes), "logprob": one.logprob}
            for one in entry.top
        ],
    }
