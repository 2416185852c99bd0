"""`octavo tune`: measure on this machine what models opened later will use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from octavo.cli.console import download_progress
from octavo.cli.options import load, settings_options

if TYPE_CHECKING:
    from octavo.compute.load.source import RawTensor
    from octavo.core.gguf import GgufFile


@click.group("tune")
def command() -> None:
    """Measure what suits this machine, and remember it."""


@command.command("kernels")
@click.argument("model", required=False)
@click.option("--reset", is_flag=True, help="Forget what was found for this machine.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
@settings_options(explain=False)
def kernels(
    model: str | None, reset: bool, quiet: bool, config: str | None, assignments: tuple[str, ...]
) -> None:
    """Measure how products of MODEL's matrices are best cut up.

    The choices change no bit of any answer. The machine should have nothing else to do.
    """
    from tqdm import tqdm

    from octavo.compute.kernels.cpu.model import choose_tier
    from octavo.compute.kernels.cpu.threads import threads_and_reason
    from octavo.compute.kernels.cpu.tuner import measure_tensor
    from octavo.compute.kernels.cpu.tuning import DEFAULT, read_tuning, tuning_path, write_tuning
    from octavo.core.catalog import resolve_model
    from octavo.core.errors import InvalidRequest
    from octavo.core.gguf import GgufFile

    settings = load(config, assignments, model).settings
    setting = settings.compute.cpu_tier
    tier = choose_tier(None if setting == "auto" else setting)
    threads = settings.compute.threads or threads_and_reason()[0]
    target = tuning_path(tier, threads)
    try:
        if reset:
            target.unlink(missing_ok=True)
            click.echo(f"{target}: forgotten")
            return
        with download_progress(settings.model) as progress:
            path = resolve_model(settings.model, progress=progress)
        table = dict(read_tuning(target))
        with GgufFile.open(path) as file:
            tensors = _matrices(file)
            for key, tensor in tqdm(tensors.items(), unit="shape", disable=quiet):
                tuned = measure_tensor(tensor, tier, threads)
                table[key] = tuned.knobs
                changed = (
                    "as by default" if tuned.knobs == DEFAULT else f"{tuned.gain:.0%} less time"
                )
                with tqdm.external_write_mode():
                    click.echo(f"{key}: {changed}")
        write_tuning(target, table, tier=tier, threads=threads)
    except OSError as error:
        raise InvalidRequest(f"cannot be written: {error.strerror}", field=str(target)) from error
    click.echo(f"{target}: {len(table)} shapes, {tier}, {threads} threads")


def _matrices(file: GgufFile) -> dict[str, RawTensor]:
    """One weight of each shape and format that the model multiplies with."""
    from octavo.compute.kernels.cpu.tuning import shape_key
    from octavo.compute.load.source import GgufWeights
    from octavo.compute.models.registry import load_program
    from octavo.compute.program import Linear, Logits

    weights = GgufWeights(file)
    found: dict[str, RawTensor] = {}
    for operator in load_program(file).operators:
        if isinstance(operator, (Linear, Logits)):
            tensor = weights.raw(operator.weight)
            found.setdefault(shape_key(tensor.shape, tensor.ggml_type.name), tensor)
    return found
