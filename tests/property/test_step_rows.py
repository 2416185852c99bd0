"""Rows kept in native code give what rows gathered anew for each step give, to the bit."""

from __future__ import annotations

import tempfile
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from octavo.compute.batch import Draw, StepOutput
from octavo.compute.kernels.cpu.model import CpuModel
from octavo.compute.kernels.cpu.rows import NativeRows
from octavo.compute.load.source import GgufWeights
from octavo.compute.models.registry import load_program
from octavo.compute.rows import ChunkRow, GatheredRows, RowSettings, rows_of
from octavo.core.gguf import GgufFile
from tiny import make_tiny_gguf

ROWS = 4
PAGE_TOKENS = 16
PAGES_A_ROW = 4
MOST_TOKENS = PAGE_TOKENS * PAGES_A_ROW
TOKENS = st.integers(0, 319)


def tiny_model() -> CpuModel:
    with tempfile.TemporaryDirectory() as folder:
        path = make_tiny_gguf(Path(folder) / "tiny.gguf", "llama", quant="mixed")
        with GgufFile.open(path) as file:
            model = CpuModel(load_program(file), GgufWeights(file), threads=1, max_batch_tokens=256)
    model.allocate_kv(ROWS * PAGES_A_ROW, PAGE_TOKENS)
    return model


@pytest.fixture(scope="module")
def model() -> CpuModel:
    return tiny_model()


@dataclass
class Seated:
    prompt_tokens: int
    tokens: list[int]
    top: int
    computed: int = 0
    blocks: int = 0


@st.composite
def draws(draw: st.DrawFn) -> Draw:
    biased = draw(st.lists(TOKENS, max_size=3, unique=True))
    return Draw(
        token=0,
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        counter=0,
        temperature=draw(st.sampled_from([0.0, 0.7, 1.3])),
        top_k=draw(st.sampled_from([0, 1, 5])),
        top_p=draw(st.sampled_from([1.0, 0.8])),
        min_p=draw(st.sampled_from([0.0, 0.1])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.4])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.3])),
        bias_ids=tuple(biased),
        bias_values=tuple(float(3 + token % 5) for token in biased),
        top=draw(st.sampled_from([None, None, 0, 3])),
    )


class BothKinds(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_model()
        self.native = rows_of(
            self.model, max_rows=ROWS, table_width=PAGES_A_ROW, max_batch_tokens=256
        )
        assert isinstance(self.native, NativeRows)
        self.gathered = GatheredRows(self.model, ROWS, PAGES_A_ROW, 256)
        self.seats: dict[int, Seated] = {}

    @rule(
        row=st.integers(0, ROWS - 1),
        draw=draws(),
        prompt=st.lists(TOKENS, min_size=1, max_size=20),
        drawn=st.lists(TOKENS, max_size=4),
        min_tokens=st.integers(0, 6),
        top=st.integers(0, 2),
    )
    def seat(
        self,
        row: int,
        draw: Draw,
        prompt: list[int],
        drawn: list[int],
        min_tokens: int,
        top: int,
    ) -> None:
        """Someone new, or someone who comes back with what it has drawn before."""
        if draw.looks_back:
            draw.history_prompt, draw.history_output = tuple(prompt), tuple(drawn)
        stop_ids = tuple(range(0, 320, 2))
        for rows in (self.native, self.gathered):
            rows.seat(row, RowSettings(deepcopy(draw), len(prompt), min_tokens, stop_ids))
        self.seats[row] = Seated(len(prompt), [*prompt, *drawn], top)

    @rule(row=st.integers(0, ROWS - 1))
    def vacate(self, row: int) -> None:
        for rows in (self.native, self.gathered):
            rows.vacate(row)
        self.seats.pop(row, None)

    @precondition(lambda self: self.seats)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        decodes: list[int] = []
        chunks: list[ChunkRow] = []
        for row in data.draw(st.permutations(sorted(self.seats))):
            seat = self.seats[row]
            rest = len(seat.tokens) - seat.computed
            if len(seat.tokens) >= MOST_TOKENS or data.draw(st.booleans()):
                continue
            count = data.draw(st.integers(1, rest))
            self._append(row, seat, seat.computed + count)
            if rest == 1 and data.draw(st.booleans()):
                decodes.append(row)
            else:
                chunks.append(self._chunk(row, seat, count, scores=data.draw(st.booleans())))
        if decodes or chunks:
            self._run(decodes, chunks, again=data.draw(st.booleans()))

    def _append(self, row: int, seat: Seated, end: int) -> None:
        blocks = -(-end // PAGE_TOKENS)
        pages = range(row * PAGES_A_ROW + seat.blocks, row * PAGES_A_ROW + blocks)
        for rows in (self.native, self.gathered):
            rows.append(row, seat.blocks, tuple(pages))
        seat.blocks = blocks

    def _chunk(self, row: int, seat: Seated, count: int, *, scores: bool) -> ChunkRow:
        start, end = seat.computed, seat.computed + count
        prompt = seat.tokens[: seat.prompt_tokens]
        targets = prompt[start + 1 : end + 1] if scores else []
        tokens = tuple(seat.tokens[start:end])
        return ChunkRow(row, start, tokens, end == len(seat.tokens), targets, seat.top)

    def _run(self, decodes: list[int], chunks: list[ChunkRow], *, again: bool) -> None:
        starts = [self.seats[row].computed for row in decodes]
        tokens = [self.seats[row].tokens[-1] for row in decodes]
        found = self.native.step(decodes, starts, tokens, chunks)
        expected = self.gathered.step(decodes, starts, tokens, chunks)
        assert plain(found) == plain(expected)
        if again:
            assert plain(self.native.step(decodes, starts, tokens, chunks)) == plain(found)
        for chunk in chunks:
            self.seats[chunk.row].computed += len(chunk.tokens)
        for row in decodes:
            self.seats[row].computed += 1
        drawing = [*decodes, *(chunk.row for chunk in chunks if chunk.draws)]
        for row, token in zip(drawing, found.drawn, strict=True):
            self.seats[row].tokens.append(token)


def plain(output: StepOutput) -> tuple[object, ...]:
    """What an output says; log-probabilities may be left out where nobody asked for them."""
    logprobs = output.drawn_logprobs if any(output.drawn_logprobs) else []
    return output.drawn, logprobs, output.scored, output.draw_errors


BothKinds.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestBothKinds = BothKinds.TestCase


def settled(draw: Draw | None = None, **more: object) -> RowSettings:
    return RowSettings(draw or Draw(0, 1, 0, temperature=0.0), 2, **more)  # type: ignore[arg-type]


def native_rows(model: CpuModel) -> NativeRows:
    return model.step_rows(ROWS, PAGES_A_ROW)


def test_wrong_steps_are_refused_and_the_rows_go_on(model: CpuModel) -> None:
    rows = native_rows(model)
    rows.seat(1, settled())
    rows.append(1, 0, (0,))
    chunk = ChunkRow(1, 0, (5, 6), True)
    good = rows.step([], [], [], [chunk])
    for wrong in (
        lambda: rows.step([0], [0], [5], []),
        lambda: rows.step([ROWS], [0], [5], []),
        lambda: rows.step([-1], [0], [5], []),
        lambda: rows.step([1], [0, 1], [5], []),
        lambda: rows.step([1], [0], [5], []),  # in the middle of its prompt
        lambda: rows.step([1], [2], [2**20], []),
        lambda: rows.step([1], [16], [5], []),  # behind its table
        lambda: rows.step([1], [2**40], [5], []),
        lambda: rows.step([], [], [], []),
        lambda: rows.step([], [], [], [chunk._replace(tokens=())]),
        lambda: rows.step([], [], [], [chunk._replace(tokens=(2**40,))]),
        lambda: rows.step([], [], [], [chunk._replace(tokens=(0.5,))]),
        lambda: rows.step([], [], [], [chunk[:5]]),
        lambda: rows.step([], [], [], [chunk._replace(targets=(6, 7, 8))]),
        lambda: rows.step([], [], [], [chunk._replace(targets=(6,), top=-1)]),
        lambda: rows.step([], [], [], [chunk._replace(targets=(2**20,))]),
        lambda: rows.append(1, 2, (1,)),
        lambda: rows.append(1, -1, (1,)),
        lambda: rows.append(1, 1, (1, 2, 3, 4)),
        lambda: rows.append(0, 0, (1,)),
        lambda: rows.vacate(ROWS),
        lambda: rows.seat(ROWS, settled()),
    ):
        with pytest.raises(
            ValueError, match=r"row|chunk|column|draw|batch|vocabulary|table|large|top"
        ):
            wrong()
    assert plain(rows.step([], [], [], [chunk])) == plain(good)


def test_settings_that_no_draw_can_have_are_refused(model: CpuModel) -> None:
    rows = native_rows(model)
    for draw in (
        Draw(0, 1, 0, top_k=2**40),
        Draw(0, 1, 0, bias_ids=(1, 2), bias_values=(0.5,)),
        Draw(0, 1, 0, bias_ids=(2**40,), bias_values=(0.5,)),
    ):
        with pytest.raises(ValueError, match=r"too large|differ in length"):
            rows.seat(0, settled(draw))
    with pytest.raises(ValueError, match="nobody"):
        rows.step([0], [2], [5], [])


def test_rows_end_with_their_model() -> None:
    model = tiny_model()
    rows = native_rows(model)
    rows.seat(0, settled())
    model.close()
    with pytest.raises(Exception, match="closed"):
        rows.step([0], [2], [5], [])
