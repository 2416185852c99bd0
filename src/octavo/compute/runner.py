"""Opens a model file on a back end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from octavo.compute.batch import StepModel
from octavo.compute.load.source import GgufWeights
from octavo.compute.models.registry import load_program
from octavo.compute.program import Program
from octavo.core.errors import SettingsError
from octavo.core.fingerprint import content_digest
from octavo.core.gguf import GgufFile

NUMERICS_VERSION = "1"
"""Raised whenever a change of the kernels changes a bit of any logit or cached K or V."""

BACKENDS = ("cpu", "reference")
DEFAULT_ACTIVATIONS = "int8"


@dataclass(frozen=True, slots=True)
class ComputeOptions:
    """How to run a model; None leaves the choice of threads or instruction set to the back end.

    The reference interpreter computes in float32 with numpy: it refuses `threads`, `tier` and any
    `activations` but "fp32" and the default, which stands for what the back end does by default.
    """

    backend: str = "cpu"
    threads: int | None = None
    activations: str = DEFAULT_ACTIVATIONS
    kv_format: str = "fp16"
    max_batch_tokens: int = 2048
    tier: str | None = None


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model on its back end.

    `facts` are what decides the bits of its KV cache, page size and salt aside: two models with
    equal facts may use each other's pages.
    """

    model: StepModel
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        return self.model.program


def open_model(
    file: GgufFile, options: ComputeOptions, *, digest_cache: Path | None = None
) -> OpenModel:
    """Check the file's tensors, load its weights and make it ready for `allocate_kv`.

    `digest_cache` remembers the digests of model files, see `core.fingerprint.content_digest`.

    Raises:
        ModelFileError: the model is not supported or damaged.
        SettingsError: an option does not fit the back end or this machine.
    """
    program = load_program(file)
    if options.backend == "cpu":
        model, tier = _open_cpu(file, program, options)
        activations = options.activations
    elif options.backend == "reference":
        model, tier = _open_reference(file, program, options), "numpy"
        activations = "fp32"
    else:
        raise SettingsError(
            f"no back end {options.backend!r}",
            field="compute.backend",
            remedy=f"use one of {', '.join(BACKENDS)}",
        )
    facts = {
        "content": content_digest(file.path, cache_file=digest_cache),
        "numerics": NUMERICS_VERSION,
        "backend": options.backend,
        "tier": tier,
        "activations": activations,
        "kv_format": options.kv_format,
    }
    return OpenModel(model, facts)


def _open_cpu(file: GgufFile, program: Program, options: ComputeOptions) -> tuple[StepModel, str]:
    from octavo.compute.kernels.cpu.model import CpuModel

    model = CpuModel(
        program,
        GgufWeights(file),
        threads=options.threads,
        activations=options.activations,
        kv_format=options.kv_format,
        max_batch_tokens=options.max_batch_tokens,
        tier=options.tier,
    )
    return model, model.tier


def _open_reference(file: GgufFile, program: Program, options: ComputeOptions) -> StepModel:
    from octavo.compute.kernels.reference.model import ReferenceModel

    for name, value, neutral in (
        ("threads", options.threads, (None,)),
        ("cpu_tier", options.tier, (None,)),
        ("activations", options.activations, (DEFAULT_ACTIVATIONS, "fp32")),
    ):
        if value not in neutral:
            raise SettingsError(
                f"{value} does not apply to the reference back end, which computes in float32"
                " with numpy",
                field=f"compute.{name}",
                remedy="leave it out or use compute.backend cpu",
            )
    return ReferenceModel(program, GgufWeights(file), kv_format=options.kv_format)
