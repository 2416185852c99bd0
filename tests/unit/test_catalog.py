"""Names and paths become model files, without the network where nothing is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from octavo.core import catalog, download
from octavo.core.catalog import KNOWN_MODELS, models_dir, pull, resolve_model
from octavo.core.errors import DownloadError, ModelNotFound


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise DownloadError("the network was used")

    monkeypatch.setattr(download, "assemble", refuse)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """A known model of ten bytes."""
    model = KNOWN_MODELS["smollm2-135m"]
    model = replace(model, name="tiny", parts=(replace(model.parts[0], size_bytes=10),))
    monkeypatch.setattr(catalog, "KNOWN_MODELS", {**KNOWN_MODELS, "tiny": model})
    return model.file_name


def test_every_known_model_is_pinned() -> None:
    assert set(KNOWN_MODELS) == {"smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b"}
    for model in KNOWN_MODELS.values():
        assert len(model.sha256) == 64
        assert model.licence
        assert all(len(part.wheel_sha256) == 64 for part in model.parts)
        assert len({part.requirement for part in model.parts}) == len(model.parts)


def test_sizes_are_those_of_the_real_files(
    smollm2_path: Path, gemma3_path: Path, qwen_path: Path
) -> None:
    paths = {path.name: path.stat().st_size for path in (smollm2_path, gemma3_path, qwen_path)}
    assert paths == {model.file_name: model.size_bytes for model in KNOWN_MODELS.values()}


def test_home_is_set_by_the_environment(tmp_path: Path) -> None:
    assert models_dir({"OCTAVO_HOME": str(tmp_path)}) == tmp_path / "models"
    assert models_dir({}) == Path.home() / ".cache" / "octavo" / "models"


def test_cached_model_needs_no_network(tiny: str, tmp_path: Path) -> None:
    (tmp_path / tiny).write_bytes(b"0123456789")
    assert resolve_model("tiny", folder=tmp_path) == tmp_path / tiny
    assert resolve_model(" Tiny ", folder=tmp_path) == tmp_path / tiny
    assert pull("tiny", folder=tmp_path) == tmp_path / tiny


def test_file_of_another_size_is_fetched_again(tiny: str, tmp_path: Path) -> None:
    (tmp_path / tiny).write_bytes(b"012345678")
    with pytest.raises(DownloadError, match="the network was used"):
        resolve_model("tiny", folder=tmp_path)


def test_missing_model_is_not_fetched_if_forbidden(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="octavo pull smollm2-135m"):
        resolve_model("smollm2-135m", fetch=False, folder=tmp_path)


def test_paths_of_files_and_folders(tmp_path: Path) -> None:
    model = tmp_path / "one.gguf"
    model.write_bytes(b"")
    (tmp_path / "README.txt").write_text("not a model")
    assert resolve_model(model) == model
    assert resolve_model(str(model)) == model
    assert resolve_model(tmp_path) == model


def test_folder_must_hold_exactly_one_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no \.gguf file"):
        resolve_model(tmp_path)
    for name in ("one.gguf", "two.GGUF"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelNotFound, match=r"holds 2 models.*one\.gguf, two\.GGUF"):
        resolve_model(tmp_path)


@pytest.mark.parametrize("name", ["smollm2", "smollm2-135M-instruct", "SmolLM-135m"])
def test_near_name_is_suggested(name: str) -> None:
    with pytest.raises(ModelNotFound, match=r"did you mean smollm2-135m\?"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "/no/such/file.gguf", "~nobody/x.gguf"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ModelNotFound, match="known names: smollm2-135m, gemma-3-270m") as caught:
        resolve_model(name)
    assert len(str(caught.value)) < 400


def test_pull_knows_names_only() -> None:
    with pytest.raises(ModelNotFound):
        pull("./model.gguf")


def test_what_is_no_name_is_refused() -> None:
    with pytest.raises(ModelNotFound, match="must be a name or a path, not int"):
        resolve_model(5)  # type: ignore[arg-type]
