"""Progress of everyone who runs, in columns over the executor's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.ids import RequestId
from octavo.memory.layout import TableLayout
from octavo.schedule import _steps

if TYPE_CHECKING:
    from octavo.schedule.lane import Lane
    from octavo.schedule.sequence import Sequence

NO_LANE = -1
NO_ROW = -1
_INFINITE = float("inf")


class Rows:
    """What a step changes of each running request, one place a row.

    Most rows of most steps decode one token, and nothing else happens to them. Such *plain* rows
    are brought forward together, in native code; a `Sequence` reads its progress here. A row that
    nobody has is not plain, and its other values mean nothing.

    In `columns`, `lane` is the rank of the class that a decoding row is scheduled in, `NO_LANE` for
    all others. `computed`, `room` and `end_tokens` count tokens: in the KV cache, that fit the page
    table, of the complete answer. `last_token` is the one that a decoding row computes next,
    `served_step` the step and `token_seconds` the time of its latest token, `gap_seconds` its
    target. Tokens of plain steps stay there until the sequence fetches them, which it does at the
    end of each page at the latest: there is room for those of one page.
    """

    def __init__(self, max_rows: int, layout: TableLayout):
        self.layout = layout
        self.page_tokens = layout.page_tokens
        self.sequences: list[Sequence | None] = [None] * max_rows
        self.request_ids: list[RequestId] = [RequestId("")] * max_rows
        self.columns = _steps.RowColumns(max_rows, layout.page_tokens)
        self.lane = self.columns.lane
        self.plain = self.columns.plain
        self.computed = self.columns.computed
        self.room = self.columns.room
        self.served_step = self.columns.served_step
        self.token_seconds = self.columns.token_seconds

    def seat(self, sequence: Sequence, row: int, computed: int) -> None:
        """A request gets a row, with nothing in its page table yet."""
        self.sequences[row] = sequence
        self.request_ids[row] = sequence.id
        self.columns.seat(
            row,
            computed,
            sequence.end_tokens,
            sequence.cached_tokens or 0,
            sequence.token_seconds_before,
            sequence.request.stop_ids,
        )
        sequence.row = row

    def vacate(self, sequence: Sequence) -> None:
        """A request that does not run any more leaves its row."""
        sequence.token_seconds_before = self.token_seconds.item(sequence.row)
        self.sequences[sequence.row] = None
        sequence.row = NO_ROW

    def set_decoding(self, sequence: Sequence, lane: Lane) -> None:
        """A row, not plain so far, has nothing but its last token to compute from now on."""
        self.columns.set_decoding(
            sequence.row,
            lane.rank,
            sequence.known_tokens[-1],
            not sequence.ghost,
            lane.service.inter_token_seconds or _INFINITE,
        )

    def unset_decoding(self, sequence: Sequence) -> None:
        self.unset_plain(sequence)
        self.lane[sequence.row] = NO_LANE

    def unset_plain(self, sequence: Sequence) -> None:
        """What happens to a row from now on is no plain step."""
        row = sequence.row
        if self.plain.item(row):
            self.fetch_tokens(sequence)
            self.plain[row] = False

    def fetch_tokens(self, sequence: Sequence) -> list[int]:
        """All tokens of a running sequence, those of plain steps too."""
        tokens, row = sequence.known_tokens, sequence.row
        if self.plain.item(row):
            tokens += self.columns.fetch(row, len(tokens))
        return tokens

    def is_decoding(self, sequence: Sequence) -> bool:
        return sequence.row >= 0 and self.lane.item(sequence.row) != NO_LANE

    def decoding(self, lane: Lane) -> tuple[list[int], int]:
        """Decoding rows of a class, longest unserved first, and the sum of their pasts."""
        if not lane.running:
            return [], 0
        return self.columns.decoding(lane.rank)

    def sequences_of(self, rows: list[int]) -> list[Sequence]:
        """Who has these rows."""
        return [sequence for row in rows if (sequence := self.sequences[row]) is not None]
