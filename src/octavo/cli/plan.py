"""`octavo plan`: replay recorded load without a model, and measure what steps cost with one."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from octavo.cli.console import download_progress, note
from octavo.cli.options import load, settings_options

if TYPE_CHECKING:
    from octavo.core.settings import Settings
    from octavo.plan.profile import Profile
    from octavo.plan.report import Report
    from octavo.plan.traces import TraceRequest, TraceScale

_CLASS_AND_FILE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.+)")


@click.group("plan")
def command() -> None:
    """Ask what a load would do: replay recorded requests on a model of time."""


@command.command("simulate")
@click.option(
    "--trace",
    "traces",
    multiple=True,
    required=True,
    metavar="[CLASS=]FILE",
    help="CSV (Azure columns) or JSONL (Mooncake fields); repeat to mix several loads.",
)
@click.option(
    "--profile",
    "profile_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="From octavo plan calibrate or learn (default: SmolLM2-135M on two cores).",
)
@click.option(
    "--gap-scale", default=1.0, show_default=True, help="Multiply the gaps between arrivals."
)
@click.option("--length-scale", default=1.0, show_default=True, help="Multiply token counts.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first requests of each file.")
@click.option(
    "--block-tokens",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Prompt tokens of one id of hash_ids, before scaling.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No status lines, no progress bar.")
@settings_options(explain=False)
def simulate(
    traces: tuple[str, ...],
    profile_path: Path | None,
    gap_scale: float,
    length_scale: float,
    limit: int | None,
    block_tokens: int,
    as_json: bool,
    quiet: bool,
    config: str | None,
    assignments: tuple[str, ...],
) -> None:
    """Replay traces through the real scheduler and page pool; steps only take time.

    The same files, profile and settings give the same report. The settings are those of an engine:
    --set scheduler.max_batch_size=32, --set memory.kv_bytes=1GB.
    """
    from octavo.plan.profile import default_profile, read_profile
    from octavo.plan.report import format_report
    from octavo.plan.traces import TraceScale, merge

    settings = load(config, assignments).settings
    profile = default_profile() if profile_path is None else read_profile(profile_path)
    scale = TraceScale(gap_scale, length_scale, limit)
    trace = merge(_read(text, scale, block_tokens) for text in traces)
    report = _simulate(settings, profile, trace, quiet)
    if as_json:
        scaling = {"gaps": gap_scale, "lengths": length_scale, "limit": limit}
        origin = {"traces": traces, "scale": scaling, "profile": asdict(profile)}
        click.echo(json.dumps({**origin, **report.to_dict()}, indent=2))
    else:
        click.echo(
            f"{len(trace)} requests, gaps x {gap_scale:g}, lengths x {length_scale:g}, "
            f"{profile.cost.model} on {profile.cost.machine}\n"
        )
        click.echo(format_report(report))


def _read(text: str, scale: TraceScale, block_tokens: int) -> list[TraceRequest]:
    from octavo.plan.traces import read_trace

    match = None if Path(text).exists() else _CLASS_AND_FILE.fullmatch(text)
    service_class, path = match.groups() if match else (None, text)
    return read_trace(Path(path), scale, service_class=service_class, block_tokens=block_tokens)


def _simulate(
    settings: Settings, profile: Profile, trace: list[TraceRequest], quiet: bool
) -> Report:
    from tqdm import tqdm

    from octavo.plan.setup import simulate as run

    with tqdm(total=len(trace), unit="request", disable=quiet, mininterval=0.5) as bar:
        started = time.perf_counter()
        report = run(settings, profile, trace, progress=lambda done, _: bar.update(done - bar.n))
        seconds = time.perf_counter() - started
    if not quiet:
        note(
            f"simulated {report.span_seconds:.1f} s in {seconds:.1f} s "
            f"({report.span_seconds / seconds:.0f} times as fast)"
        )
    return report


@command.command("calibrate")
@click.argument("model", required=False)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write (default: profiles/MODEL.json in Octavo's folder).",
)
@click.option("-q", "--quiet", is_flag=True, help="No status lines, no progress bar.")
@settings_options(explain=False)
def calibrate(
    model: str | None,
    output: Path | None,
    quiet: bool,
    config: str | None,
    assignments: tuple[str, ...],
) -> None:
    """Measure the steps of MODEL on this machine and write what they cost as a profile.

    Takes about half a minute on a small model; the machine should have nothing else to do.
    """
    from octavo.core.catalog import octavo_home, resolve_model

    settings = load(config, assignments, model).settings
    with download_progress(settings.model) as progress:
        path = resolve_model(settings.model, progress=progress)
    profile = _measure(path, settings, quiet)
    target = output or octavo_home() / "profiles" / f"{path.stem}.json"
    _write(target, profile.to_json())
    click.echo(
        f"{target}: {profile.steps} steps, off by {profile.cost.error:.1%} (median), "
        f"{profile.p90_error:.1%} (p90)"
    )


@command.command("learn")
@click.argument("metrics", nargs=-1, required=True, type=click.File(errors="replace"))
@click.option(
    "--profile",
    "profile_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Of the same model and machine (default: SmolLM2-135M on two cores).",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="File to write.",
)
def learn(metrics: tuple[IO[str], ...], profile_path: Path | None, output: Path) -> None:
    """Write a profile with the step times that a server has learned from its own traffic.

    METRICS is what its /metrics says, - for standard input; of several the mean is taken. What the
    server does beside the model, and what else runs on its machine, is in these times; all else is
    that of --profile.
    """
    from octavo.plan.learned import learned_profile
    from octavo.plan.profile import default_profile, read_profile

    base = default_profile() if profile_path is None else read_profile(profile_path)
    profile = learned_profile([each.read() for each in metrics], base)
    if profile.cost.model != Path(base.cost.model).stem:
        note(f"{profile.cost.model} has the memory of {base.cost.model}: see --profile")
    _write(output, profile.to_json())
    click.echo(f"{output}: {profile.steps} steps, off by {profile.cost.error:.1%} of late")


def _measure(path: Path, settings: Settings, quiet: bool) -> Profile:
    from tqdm import tqdm

    from octavo.compute.kernels.cpu.threads import threads_and_reason
    from octavo.core.gguf import GgufFile
    from octavo.engine.model_executor import ModelExecutor
    from octavo.engine.opening import open_engine
    from octavo.plan.calibrate import Calibration, standard_loads
    from octavo.plan.fit import fit_cost
    from octavo.plan.profile import EngineFacts, Profile
    from octavo.plan.setup import CacheSize

    with GgufFile.open(path) as file:
        opened = open_engine(file, settings, emit=lambda event: None)
        try:
            capacity, layout = opened.capacity, opened.layout
            max_rows = settings.scheduler.max_batch_size
            executor = ModelExecutor(
                opened.model,
                max_rows=max_rows,
                max_pages_per_row=layout.blocks_for(capacity.context_tokens) * layout.groups,
                max_batch_tokens=settings.scheduler.token_budget,
                groups=layout.groups,
            )
            size = CacheSize(
                capacity.pages,
                capacity.page_tokens,
                capacity.context_tokens,
                layout.groups,
                layout.window_tokens,
            )
            loads = standard_loads(size, max_rows=max_rows)
            calibration = Calibration(
                executor,
                size,
                max_rows=max_rows,
                token_budget=settings.scheduler.token_budget,
                vocabulary_size=opened.limits.vocabulary_size,
                clock=time.perf_counter,
            )
            with tqdm(total=len(loads), unit="load", disable=quiet) as bar:
                samples = calibration.run(loads, lambda done: bar.update(done - bar.n))
            fit = fit_cost(samples, machine=_machine(), model=path.name)
            program = opened.model.program
            layers = program.kv.layers
            token_bytes = opened.model.page_bytes(capacity.page_tokens) // capacity.page_tokens
            facts = EngineFacts(
                threads=settings.compute.threads or threads_and_reason()[0],
                context_tokens=opened.model.program.context_tokens,
                layers=layers,
                layer_token_bytes=token_bytes // layers,
                kv_bytes=capacity.kv_bytes,
                cache_groups=layout.groups,
                group_layers=program.cache_groups().layers if layout.windowed else layers,
                window_tokens=layout.window_tokens,
            )
            return Profile(fit.cost, fit.p90_error, len(samples), facts)
        finally:
            opened.engine.close()


def _machine() -> str:
    """The processor and how many this process may use."""
    from octavo.compute.kernels.cpu.tuning import processor_name

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor_name()}, {allowed} CPUs"


def _write(path: Path, text: str) -> None:
    """Replace the file as a whole.

    Raises:
        InvalidRequest: it cannot be written.
    """
    from octavo.core.errors import InvalidRequest

    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and not path.is_file():  # a device or a pipe
            path.write_text(text, encoding="utf-8")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise InvalidRequest(f"cannot be written: {error.strerror}", field=str(path)) from error
