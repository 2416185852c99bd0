"""Progress of everyone who runs, in columns over the executor's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from octavo.core.ids import RequestId
from octavo.memory.layout import TableLayout

if TYPE_CHECKING:
    from octavo.schedule.lane import Lane
    from octavo.schedule.sequence import Sequence

RowNumbers = NDArray[np.int64]

NO_LANE = -1
NO_ROW = -1
NO_ROWS: RowNumbers = np.empty(0, dtype=np.int64)


class Rows:
    """What a step changes of each running request, one place a row.

    Most rows of most steps decode one token, and nothing else happens to them. Such *plain* rows
    are brought forward together, by numpy; a `Sequence` reads its progress here. A row that nobody
    has is not plain, and its other values mean nothing.

    `lane` is the rank of the class that a decoding row is scheduled in, `NO_LANE` for all others.
    `computed`, `room` and `end_tokens` count tokens: in the KV cache, that fit the page table, of
    the complete answer. `last_token` is the one that a decoding row computes next, `served_step`
    the step and `token_seconds` the time of its latest token, `gap_seconds` its target.
    `new_tokens` are those of plain steps that its sequence has not fetched yet, which it does at
    the end of each page at the latest; the one at position p is in column p modulo page size.
    """

    def __init__(self, max_rows: int, layout: TableLayout):
        self.layout = layout
        self.page_tokens = page_tokens = layout.page_tokens
        self.sequences: list[Sequence | None] = [None] * max_rows
        self.request_ids = np.full(max_rows, RequestId(""), dtype=np.object_)
        self.stop_ids: list[AbstractSet[int]] = [frozenset()] * max_rows
        self.stop_counts: Counter[int] = Counter()
        self.cached_tokens = np.zeros(max_rows, dtype=np.int64)
        self.lane = np.full(max_rows, NO_LANE, dtype=np.int64)
        self.plain = np.zeros(max_rows, dtype=np.bool_)
        self.computed = np.zeros(max_rows, dtype=np.int64)
        self.room = np.zeros(max_rows, dtype=np.int64)
        self.end_tokens = np.zeros(max_rows, dtype=np.int64)
        self.last_token = np.zeros(max_rows, dtype=np.int64)
        self.new_tokens = np.zeros((max_rows, page_tokens), dtype=np.int64)
        self.served_step = np.zeros(max_rows, dtype=np.int64)
        self.token_seconds = np.zeros(max_rows, dtype=np.float64)
        self.gap_seconds = np.zeros(max_rows, dtype=np.float64)

    def seat(self, sequence: Sequence, row: int, computed: int) -> None:
        """A request gets a row, with nothing in its page table yet."""
        self.sequences[row] = sequence
        self.request_ids[row] = sequence.id
        self.stop_ids[row] = sequence.request.stop_ids
        for token in sequence.request.stop_ids:
            self.stop_counts[token] += 1
        self.cached_tokens[row] = sequence.cached_tokens or 0
        self.computed[row] = computed
        self.room[row] = 0
        self.end_tokens[row] = sequence.end_tokens
        self.token_seconds[row] = sequence.token_seconds_before
        sequence.row = row

    def vacate(self, sequence: Sequence) -> None:
        """A request that does not run any more leaves its row."""
        row = sequence.row
        sequence.token_seconds_before = self.token_seconds.item(row)
        self.sequences[row] = None
        for token in sequence.request.stop_ids:
            self.stop_counts[token] -= 1
            if not self.stop_counts[token]:
                del self.stop_counts[token]
        sequence.row = NO_ROW

    def set_decoding(self, sequence: Sequence, lane: Lane) -> None:
        """A row, not plain so far, has nothing but its last token to compute from now on."""
        row = sequence.row
        self.lane[row] = lane.rank
        self.last_token[row] = sequence.known_tokens[-1]
        self.plain[row] = not sequence.ghost
        self.gap_seconds[row] = lane.service.inter_token_seconds or np.inf

    def unset_decoding(self, sequence: Sequence) -> None:
        self.unset_plain(sequence)
        self.lane[sequence.row] = NO_LANE

    def unset_plain(self, sequence: Sequence) -> None:
        """What happens to a row from now on is no plain step."""
        row = sequence.row
        if self.plain.item(row):
            self.fetch_tokens(sequence)
            self.plain[row] = False

    def add_tokens(self, rows: RowNumbers, tokens: RowNumbers, step: int) -> list[Sequence]:
        """A step computed the last token of plain rows, and brought each the next one.

        Returns those whose computed token was the last one of a page.
        """
        computed = self.computed[rows] + 1
        columns = computed % self.page_tokens
        self.computed[rows] = computed
        self.last_token[rows] = tokens
        self.new_tokens[rows, columns] = tokens
        self.served_step[rows] = step
        return self._sequences_of(rows[columns == 0])

    def fetch_tokens(self, sequence: Sequence) -> list[int]:
        """All tokens of a running sequence, those of plain steps too."""
        tokens, row = sequence.known_tokens, sequence.row
        if self.plain.item(row):
            missing = self.computed.item(row) + 1 - len(tokens)
            if missing:
                line = self.new_tokens[row].tolist()
                first = len(tokens) % self.page_tokens
                tokens += (line[first:] + line[:first])[:missing]
        return tokens

    def is_decoding(self, sequence: Sequence) -> bool:
        return sequence.row >= 0 and self.lane.item(sequence.row) != NO_LANE

    def decoding(self, lane: Lane) -> RowNumbers:
        """Decoding rows of a class, longest unserved first."""
        if not lane.running:
            return NO_ROWS
        rows: RowNumbers = (self.lane == lane.rank).nonzero()[0]
        if len(rows) < 2:
            return rows
        return rows[self.served_step[rows].argsort(kind="stable")]

    def without_room(self, rows: RowNumbers) -> list[Sequence]:
        """Those of decoding `rows` that need a page before their next token."""
        return self._sequences_of(rows[self.computed[rows] >= self.room[rows]])

    def _sequences_of(self, rows: RowNumbers) -> list[Sequence]:
        return [sequence for row in rows.tolist() if (sequence := self.sequences[row]) is not None]
