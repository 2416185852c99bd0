"""Whole steps of tiny models on the CPU back end, against the reference and against themselves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.compute.batch import Batch, Draw, Score
from octavo.compute.kernels.cpu import _native
from octavo.compute.kernels.cpu.lower import Opcode, lower
from octavo.compute.kernels.cpu.model import CpuModel, choose_tier
from octavo.compute.kernels.cpu.threads import threads_and_reason
from octavo.compute.kernels.reference.model import ReferenceModel
from octavo.compute.load.source import GgufWeights, RawTensor
from octavo.compute.models.registry import load_program
from octavo.compute.program import Program
from octavo.core.errors import EngineError, ModelFileError, SettingsError
from octavo.core.gguf import GgufFile
from octavo.observe.process_memory import resident_bytes
from tiny import FAMILIES, make_tiny_gguf

Floats = NDArray[np.float32]
Loaded = tuple[Program, GgufWeights]


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A model of each family with mixed formats."""
    return load(tmp_path_factory.mktemp("tiny"), request.param)


def load(folder: Path, family: str = "llama", **settings: object) -> Loaded:
    path = make_tiny_gguf(folder / f"{family}.gguf", family, **{"quant": "mixed", **settings})  # type: ignore[arg-type]
    file = GgufFile.open(path)
    return load_program(file), GgufWeights(file)


@pytest.fixture
def llama(tmp_path: Path) -> CpuModel:
    model = CpuModel(*load(tmp_path), threads=1, max_batch_tokens=256)
    model.allocate_kv(16, 16)
    return model


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 320, length).tolist()


def make_batch(rows: Sequence[tuple[Sequence[int], int, Sequence[int]]]) -> Batch:
    """Rows of (new tokens, past, pages)."""
    width = max(len(pages) for _, _, pages in rows)
    tables = np.full((len(rows), width), -1, dtype=np.int32)
    for row, (_, _, pages) in enumerate(rows):
        tables[row, : len(pages)] = pages
    return Batch(
        np.concatenate([np.asarray(tokens, dtype=np.int32) for tokens, _, _ in rows]),
        np.cumsum([0, *(len(tokens) for tokens, _, _ in rows)]).astype(np.int32),
        np.asarray([past for _, past, _ in rows], dtype=np.int32),
        tables,
    )


def run_chunks(model: CpuModel, tokens: Sequence[int], sizes: Sequence[int]) -> Floats:
    """Logits of every token, computed in chunks; pages in falling order."""
    pages = list(range(15, -1, -1))
    parts = []
    for start, end in pairwise(np.cumsum([0, *sizes]).tolist()):
        batch = make_batch([(tokens[start:end], start, pages)])
        parts.append(model.logits(batch, range(end - start)))
    return np.concatenate(parts)


def bits(values: Floats) -> NDArray[np.uint32]:
    return values.view(np.uint32)


@pytest.mark.parametrize("activations", ["fp32", "int8x2", "int8"])
def test_steps_follow_the_reference(tiny: Loaded, activations: str) -> None:
    tokens, pages = prompt(90), [3, 1, 2, 0, 5, 4]
    batch = make_batch([(tokens[:70], 0, pages), (tokens[70:], 0, [7, 8])])
    # Both keep K and V in fp32: with fp16, a last-bit difference may round to another half.
    reference = ReferenceModel(*tiny, kv_format="fp32")
    reference.allocate_kv(16, 16)
    model = CpuModel(*tiny, activations=activations, kv_format="fp32", threads=2)
    model.allocate_kv(16, 16)
    want = reference.logits(batch, range(90))
    got = model.logits(batch, range(90))
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error < {"fp32": 3e-6, "int8x2": 5e-4, "int8": 0.06}[activations]


@pytest.mark.parametrize(
    ("activations", "kv_format"),
    [("int8", "fp16"), ("int8x2", "fp16"), ("fp32", "fp16"), ("int8", "int8")],
)
def test_bits_do_not_depend_on_chunks_pages_batch_or_threads(
    tiny: Loaded, activations: str, kv_format: str
) -> None:
    tokens, length = prompt(150), 150
    results = {}
    for threads, page_tokens in ((1, 16), (2, 32), (3, 64)):
        model = CpuModel(
            *tiny,
            activations=activations,
            kv_format=kv_format,
            threads=threads,
            max_batch_tokens=512,
        )
        model.allocate_kv(16, page_tokens)
        for sizes in ([150], [1] * 10 + [7, 64, 33, 36]):
            assert sum(sizes) == length
            results[threads, page_tokens, len(sizes)] = run_chunks(model, tokens, sizes)
        crowd = make_batch(
            [
                (prompt(20, 1), 0, [6, 7]),
                (tokens, 0, [15, 0, 14, 1, 13, 2, 12, 3, 11, 4]),
                (prompt(3, 2), 0, [8]),
            ]
        )
        results[threads, page_tokens, "crowd"] = model.logits(crowd, range(20, 170))
    first, *others = results.values()
    assert np.isfinite(first).all()
    assert all(np.array_equal(bits(first), bits(other)) for other in others)


@pytest.mark.parametrize("activations", ["int8", "int8x2", "fp32"])
def test_fused_operators_give_the_bits_of_single_ones(tiny: Loaded, activations: str) -> None:
    program, _ = tiny
    fused, single = lower(program), lower(program, fused=False)
    assert len(fused.integers) < len(single.integers)
    results = []
    for together in (True, False):
        model = CpuModel(*tiny, activations=activations, threads=2, fused=together)
        model.allocate_kv(16, 16)
        results.append(run_chunks(model, prompt(100), [64, 1, 35]))
    assert np.array_equal(bits(results[0]), bits(results[1]))


def test_a_profile_counts_the_operations_of_its_steps(llama: CpuModel) -> None:
    tokens = prompt(20)
    plain = run_chunks(llama, tokens, [20])
    assert llama.profile() == ()
    llama.enable_profile()
    profiled = run_chunks(llama, tokens, [12, 8])
    calls = {part.name: part.calls for part in llama.profile()}
    layers = llama.program.kv.layers
    assert calls["attention"] == calls["kv_write"] == 2 * layers
    assert calls["logits"] == calls["tables"] == calls["embedding"] == 2
    assert "sampling" not in calls
    assert all(part.seconds > 0 for part in llama.profile())
    assert np.array_equal(bits(plain), bits(profiled))
    llama.enable_profile(False)
    run_chunks(llama, tokens, [20])
    assert llama.profile() == ()


def test_waiting_workers_take_no_time(tmp_path: Path) -> None:
    model = CpuModel(*load(tmp_path), threads=3)
    model.allocate_kv(16, 16)
    run_chunks(model, prompt(20), [20])
    time.sleep(0.05)  # longer than workers look out for the next region
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.25


@pytest.mark.parametrize("kv_format", ["fp16", "int8"])
def test_tiers_agree_by_bits(tiny: Loaded, kv_format: str) -> None:
    results = []
    for tier in ("scalar", "avx2", "avx512-vnni"):
        try:
            model = CpuModel(*tiny, tier=tier, kv_format=kv_format, threads=2)
        except SettingsError:
            continue
        assert model.tier == tier
        model.allocate_kv(16, 16)
        results.append(run_chunks(model, prompt(100), [64, 36]))
    assert all(np.array_equal(bits(results[0]), bits(other)) for other in results[1:])


@pytest.mark.parametrize("kv_format", ["fp16", "int8"])
def test_slots_never_written_are_never_read(tiny: Loaded, kv_format: str) -> None:
    tokens = prompt(75)
    model = CpuModel(*tiny, kv_format=kv_format, threads=1)
    model.allocate_kv(16, 16)
    clean = run_chunks(model, tokens, [75])
    poisoned = model._model().cache_bytes()
    poisoned[:] = 255  # NaN, as a number or as a scale
    assert np.array_equal(bits(run_chunks(model, tokens, [40, 35])), bits(clean))


def test_memory_that_was_given_back_changes_no_bit(tiny: Loaded) -> None:
    tokens = prompt(200)
    model = CpuModel(*tiny, threads=2, max_batch_tokens=256)
    model.allocate_kv(16, 16)
    expected = run_chunks(model, tokens, [150, 50])
    buffers = model.elastic()
    whole_bytes = 16 * model.page_bytes(16)
    assert 0 < buffers.discard_kv(0, 16) <= whole_bytes
    assert not model._native.cache_bytes()[: whole_bytes // 4096 * 4096].any()  # type: ignore[union-attr]
    assert buffers.discard_workspace() > 0
    buffers.populate_kv(3, 5)
    got = run_chunks(model, tokens, [150, 50])
    assert np.array_equal(bits(got), bits(expected))
    cached = model._native.cache_bytes().copy()  # type: ignore[union-attr]
    buffers.populate_kv(0, 16)
    assert np.array_equal(model._native.cache_bytes(), cached)  # type: ignore[union-attr]
    for first, count in ((-1, 1), (0, 17), (16, 1), (0, -1)):
        with pytest.raises(ValueError, match="no such pages"):
            buffers.discard_kv(first, count)
        with pytest.raises(ValueError, match="no such pages"):
            buffers.populate_kv(first, count)


def test_a_small_step_takes_a_small_part_of_the_workspace(tmp_path: Path) -> None:
    model = CpuModel(*load(tmp_path), threads=1, max_batch_tokens=1 << 16)
    model.allocate_kv(16, 16)
    huge_page_bytes = 2 << 20
    assert model.workspace_bytes > 64 * huge_page_bytes

    def grown_bytes() -> int:
        model.elastic().discard_workspace()
        before = resident_bytes()
        model.step(make_batch([([5], 0, [0])]), [Draw(0, 1, 0)], [])
        return resident_bytes() - before

    grown_bytes()  # what a first step takes for good
    assert grown_bytes() < 2 * huge_page_bytes


def test_a_wider_cache_is_closer_to_an_exact_one(tiny: Loaded) -> None:
    tokens, errors = prompt(80), []
    reference = ReferenceModel(*tiny, kv_format="fp32", dtype=np.float64)
    reference.allocate_kv(16, 16)
    batch = make_batch([(tokens, 0, range(6))])
    want = reference.logits(batch, range(80))
    sizes = {}
    for kv_format in ("fp32", "fp16", "int8"):
        model = CpuModel(*tiny, activations="fp32", kv_format=kv_format, threads=1)
        model.allocate_kv(16, 16)
        errors.append(np.abs(model.logits(batch, range(80)) - want).max())
        sizes[kv_format] = model.page_bytes(16)
        assert sizes[kv_format] == ReferenceModel(*tiny, kv_format=kv_format).page_bytes(16)
    assert errors == sorted(errors)
    assert errors[2] < 0.05 * np.abs(want).max()
    assert sizes["fp32"] == 2 * sizes["fp16"] > 3 * sizes["int8"] > sizes["fp16"]


def test_draws_and_scores_see_the_logits_of_their_tokens(llama: CpuModel) -> None:
    tokens = prompt(200)
    batch = make_batch([(tokens, 0, range(13))])
    logits = llama.logits(batch, range(200))
    greedy = [Draw(token=token, seed=1, counter=0, temperature=0.0, top=3) for token in (199, 4)]
    scores = [Score(token, tokens[token + 1], top=2) for token in range(150)]
    output = llama.step(batch, greedy, scores)
    assert output.drawn == logits[[199, 4]].argmax(axis=1).tolist()
    assert output.native_seconds > 0
    exact = logits.astype(np.float64)
    normalised = exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))
    for score, entry in zip(scores, output.scored, strict=True):
        assert entry.token_id == score.target
        assert entry.logprob == pytest.approx(normalised[score.token, score.target], abs=1e-4)
        assert entry.top[0][0] == int(logits[score.token].argmax())
    assert output.drawn_logprobs[0] is not None
    assert len(output.drawn_logprobs[0].top) == 3


def test_bad_batches_are_refused_and_leave_the_model_usable(llama: CpuModel) -> None:
    tokens = prompt(40)
    good = make_batch([(tokens, 0, [0, 1, 2])])
    want = llama.logits(good, [39])

    def broken(**changes: object) -> Batch:
        fields = {name: getattr(good, name) for name in ("tokens", "row_starts", "past", "tables")}
        return Batch(**{**fields, **changes})  # type: ignore[arg-type]

    def ints(*values: int) -> NDArray[np.int32]:
        return np.asarray(values, dtype=np.int32)

    for batch, message in (
        (broken(tokens=np.where(good.tokens == tokens[0], -1, good.tokens)), "vocabulary"),
        (broken(tokens=good.tokens + 512), "vocabulary"),
        (broken(row_starts=ints(0, 39)), "row_starts"),
        (broken(row_starts=ints(0, 41)), "row_starts"),
        (broken(row_starts=ints(1, 40)), "row_starts"),
        (broken(row_starts=ints(0, 0, 40), past=ints(0, 0), tables=good.tables.repeat(2, 0)),
         "empty"),
        (broken(row_starts=ints(0, 50, 40), past=ints(0, 0), tables=good.tables.repeat(2, 0)),
         "out of order"),
        (broken(past=ints(-1)), "past"),
        (broken(past=ints(2**31 - 1)), "page table"),
        (broken(past=ints(9)), "page table"),
        (broken(tables=good.tables - 1), "page -1"),
        (broken(tables=good.tables + 14), "page 16"),
        (broken(tables=good.tables.repeat(2, 0)), "differ in rows"),
        (make_batch([(prompt(257), 0, range(17))]), "257 tokens"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            llama.logits(batch, [0])
    for wanted in ([40], [-1]):
        with pytest.raises(ValueError, match="wanted"):
            llama.logits(good, wanted)
    with pytest.raises(ValueError, match="target"):
        llama.step(good, [], [Score(3, 100_000)])
    assert np.array_equal(bits(llama.logits(good, [39])), bits(want))


def test_cache_sizes_are_checked(llama: CpuModel) -> None:
    for pages, page_tokens in ((0, 16), (-1, 16), (4, 24), (2**31 - 1, 256)):
        with pytest.raises((ValueError, MemoryError)):
            llama.allocate_kv(pages, page_tokens)
    with pytest.raises(ValueError, match="page"):
        llama.page_bytes(17)


def test_a_model_without_cache_or_closed_says_so(tmp_path: Path) -> None:
    model = CpuModel(*load(tmp_path), threads=1)
    batch = make_batch([([1, 2], 0, [0])])
    with pytest.raises(ValueError, match="allocate_kv"):
        model.logits(batch, [0])
    model.close()
    with pytest.raises(EngineError, match="closed"):
        model.logits(batch, [0])


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"threads": 0}, "compute.threads"),
        ({"threads": 5000}, "compute.threads"),
        ({"activations": "int4"}, "compute.activations"),
        ({"kv_format": "fp8"}, "memory.kv_format"),
        ({"max_batch_tokens": 0}, "compute.max_batch_tokens"),
        ({"tier": "mmx"}, "compute.cpu_tier"),
        ({"tier": ""}, "compute.cpu_tier"),
    ],
)
def test_bad_settings_name_their_field(
    tmp_path: Path, settings: dict[str, object], field: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        CpuModel(*load(tmp_path), **settings)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_tier_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CPU_TIER", "scalar")
    assert choose_tier(None) == "scalar"
    monkeypatch.setenv("OCTAVO_CPU_TIER", "sse9")
    with pytest.raises(SettingsError) as caught:
        choose_tier(None)
    assert caught.value.field == "OCTAVO_CPU_TIER"
    assert choose_tier("scalar") == "scalar"
    monkeypatch.delenv("OCTAVO_CPU_TIER")
    assert choose_tier(None) == _native.tier()


def test_a_tensor_that_does_not_fit_is_named(tmp_path: Path) -> None:
    program, weights = load(tmp_path)

    class Cut:
        def names(self) -> Sequence[str]:
            return list(weights.names())

        def raw(self, name: str) -> RawTensor:
            tensor = weights.raw(name)
            if name != "blk.1.ffn_down.weight":
                return tensor
            return RawTensor(tensor.data[:-1], tensor.ggml_type, tensor.shape)

        def release(self, name: str) -> None:
            weights.release(name)

    with pytest.raises(ModelFileError) as caught:
        CpuModel(program, Cut(), threads=1)
    assert caught.value.field == "blk.1.ffn_down.weight"


def test_lowering_shares_slots_and_prepares_each_input_once(tmp_path: Path) -> None:
    program, _ = load(tmp_path)
    lowered = lower(program, fused=False)
    codes = lowered.integers[:, 0].tolist()
    assert len(lowered.integers) == len(program.operators) + codes.count(Opcode.PREPARE)
    # A layer prepares the inputs of q/k/v, of the output projection, of gate/up and of down.
    assert codes.count(Opcode.PREPARE) == 4 * program.kv.layers
    assert len(lowered.rotations) == 1
    fused = lower(program).integers[:, 0].tolist()
    # Who makes an input prepares it, and residuals are added by the projections.
    assert fused.count(Opcode.PREPARE) == 0
    assert fused.count(Opcode.ADD) == 0
    assert lowered.slots <= 5
    assert len(lowered.matrices) == len(set(lowered.matrices)) == 1 + 7 * program.kv.layers


def test_threads_follow_affinity_cores_and_control_group(tmp_path: Path) -> None:
    cpus, cgroups, membership = tmp_path / "cpu", tmp_path / "cgroup", tmp_path / "membership"
    for cpu in range(4):
        folder = cpus / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    membership.write_text("0::/box/job\n")
    (cgroups / "box" / "job").mkdir(parents=True)

    def ask(allowed: Sequence[int]) -> tuple[int, str]:
        return threads_and_reason(
            allowed=allowed, cpus=cpus, cgroups=cgroups, membership=membership
        )

    assert ask(range(4)) == (2, "2 physical cores of 4 allowed CPUs")
    assert ask([0, 2]) == (1, "1 physical core of 2 allowed CPUs")
    assert ask([7])[0] == 1
    (cgroups / "box" / "cpu.max").write_text("150000 100000\n")
    (cgroups / "box" / "job" / "cpu.max").write_text("max 100000\n")
    assert ask(range(4)) == (1, "the control group grants the time of 1.5 CPUs")
    (cgroups / "box" / "cpu.max").write_text("400000 100000\n")
    assert ask(range(4))[0] == 2
    membership.write_text("4:cpu,cpuacct:/box\n")
    (cgroups / "cpu" / "box").mkdir(parents=True)
    (cgroups / "cpu" / "box" / "cpu.cfs_quota_us").write_text("50000\n")
    (cgroups / "cpu" / "box" / "cpu.cfs_period_us").write_text("100000\n")
    assert ask(range(4)) == (1, "the control group grants the time of 0.5 CPUs")
