"""Trace files: what is read, how it is scaled, and what is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.core.errors import InvalidRequest
from octavo.plan.synthetic import SyntheticPrompts, answer_token, request_id
from octavo.plan.traces import TraceRequest, TraceScale, merge, read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def csv_file(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "trace.csv"
    path.write_text("\n".join((header, *lines)) + "\n")
    return path


def jsonl_file(folder: Path, *entries: object) -> Path:
    path = folder / "trace.jsonl"
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    path.write_text("\n".join(lines) + "\n")
    return path


def block_entry(tokens: int, ids: list[int], at: float = 0) -> dict[str, object]:
    return {"timestamp": at, "input_length": tokens, "output_length": 1, "hash_ids": ids}


class TestCsv:
    def test_dates_with_seven_digits_become_seconds_since_the_first(self, tmp_path: Path) -> None:
        path = csv_file(
            tmp_path,
            "2023-11-16 18:15:46.6805900,374,44",
            "2023-11-16 18:16:50.6905900,396,0",
        )
        first, second = read_trace(path)
        assert (first.arrival_seconds, first.prompt_tokens, first.output_tokens) == (0, 374, 44)
        assert second.arrival_seconds == pytest.approx(64.01)
        assert second.output_tokens == 0

    def test_seconds_zones_and_further_columns_are_read(self, tmp_path: Path) -> None:
        path = csv_file(
            tmp_path,
            "12.5,ada,3,7,realtime",
            "10,,4,8,",
            header="TIMESTAMP,Tenant,ContextTokens,GeneratedTokens,ServiceClass",
        )
        assert [
            (one.arrival_seconds, one.tenant, one.service_class) for one in read_trace(path)
        ] == [
            (0, None, None),
            (2.5, "ada", "realtime"),
        ]
        path = csv_file(tmp_path, "2024-05-10 00:00:00+00:00,1,1", "2024-05-10 02:00:01+02:00,1,1")
        assert [one.arrival_seconds for one in read_trace(path)] == [0, 1]

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("yesterday,1,1", "TIMESTAMP"),
            ("nan,1,1", "TIMESTAMP"),
            ("1,0,1", "ContextTokens must be a whole number from 1"),
            ("1,2.5,1", "ContextTokens"),
            ("1,1,-1", "GeneratedTokens"),
            ("1,1,99999999999", "GeneratedTokens"),
            ("1,1", "has 2 fields"),
            ("1,1,1,1", "has 4 fields"),
            ("1,,1", "ContextTokens"),
        ],
    )
    def test_a_malformed_line_is_named(self, tmp_path: Path, line: str, problem: str) -> None:
        path = csv_file(tmp_path, "0,1,1", line)
        with pytest.raises(InvalidRequest, match=problem) as raised:
            read_trace(path)
        assert raised.value.field == f"{path}, line 3"

    def test_a_missing_column_is_named(self, tmp_path: Path) -> None:
        path = csv_file(tmp_path, header="TIMESTAMP,ContextTokens")
        with pytest.raises(InvalidRequest, match="GeneratedTokens") as raised:
            read_trace(path)
        assert raised.value.field == f"{path}, line 1"


class TestJsonl:
    def test_milliseconds_and_blocks_are_read(self, tmp_path: Path) -> None:
        path = jsonl_file(tmp_path, block_entry(600, [5, 6]), block_entry(512, [5], at=1500))
        first, second = read_trace(path)
        assert (first.block_ids, first.block_tokens) == ((5, 6), 512)
        assert second.arrival_seconds == 1.5

    @pytest.mark.parametrize(
        ("entry", "problem"),
        [
            ("{", "is not JSON"),
            ("[]", "is not a JSON object"),
            ("[" * 100_000, "is not JSON"),
            ({"timestamp": 0, "input_length": 5}, "output_length is missing"),
            ({"timestamp": "0", "input_length": 5, "output_length": 5}, "timestamp must be"),
            ({"timestamp": 0, "input_length": True, "output_length": 5}, "input_length must be"),
            (block_entry(513, [1]), "has 1 ids where the prompt has 2 blocks"),
            ({**block_entry(1, []), "hash_ids": "1"}, "list of whole numbers"),
            ({**block_entry(1, [1]), "tenant": 3}, "tenant must be a name"),
            ('{"timestamp": 1e999, "input_length": 1, "output_length": 1}', "timestamp must be"),
        ],
    )
    def test_a_malformed_line_is_named(self, tmp_path: Path, entry: object, problem: str) -> None:
        path = jsonl_file(tmp_path, block_entry(1, [1]), entry)
        with pytest.raises(InvalidRequest, match=problem) as raised:
            read_trace(path)
        assert raised.value.field == f"{path}, line 2"


class TestFiles:
    def test_what_cannot_be_read_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequest, match="cannot be read"):
            read_trace(tmp_path / "none.csv")
        with pytest.raises(InvalidRequest, match=r"neither \.csv nor \.jsonl"):
            read_trace(tmp_path / "trace.parquet")
        with pytest.raises(InvalidRequest, match="has no requests"):
            read_trace(csv_file(tmp_path))
        (tmp_path / "latin.csv").write_bytes(HEADER.encode() + b"\n\xe9")
        with pytest.raises(InvalidRequest, match="UTF-8"):
            read_trace(tmp_path / "latin.csv")

    def test_the_published_traces_are_read_whole(self, data_dir: Path) -> None:
        folder = data_dir / "azure-llm-2023"
        chat = read_trace(folder / "AzureLLMInferenceTrace_conv.csv")
        assert (len(chat), round(chat[-1].arrival_seconds)) == (19366, 3502)
        assert len(read_trace(folder / "AzureLLMInferenceTrace_code.csv")) == 8819
        shared = read_trace(data_dir / "mooncake" / "conversation_trace.head.jsonl")
        assert (len(shared), round(shared[-1].arrival_seconds)) == (3894, 1266)
        assert {one.block_ids[0] for one in shared} == {0}


class TestScale:
    def test_gaps_lengths_and_limit(self, tmp_path: Path) -> None:
        path = csv_file(tmp_path, "5,100,10", "6,1,1", "9,100,0", "10,1,1")
        scaled = read_trace(path, TraceScale(gaps=2, lengths=0.25, limit=3))
        assert [(one.arrival_seconds, one.prompt_tokens, one.output_tokens) for one in scaled] == [
            (0, 25, 2),
            (2, 1, 1),
            (8, 25, 0),
        ]

    @pytest.mark.parametrize("scale", [{"gaps": 0}, {"lengths": float("nan")}, {"limit": 0}])
    def test_a_scale_that_is_none_is_refused(self, scale: dict[str, float]) -> None:
        with pytest.raises(InvalidRequest):
            TraceScale(**scale)  # type: ignore[arg-type]

    @pytest.mark.parametrize("lengths", [1e5, 1.7e308])
    def test_a_scale_that_makes_too_long_requests_is_refused(
        self, tmp_path: Path, lengths: float
    ) -> None:
        path = jsonl_file(tmp_path, block_entry(1024, [1, 2]))
        with pytest.raises(InvalidRequest, match="length scale: makes 1024 tokens more than"):
            read_trace(path, TraceScale(lengths=lengths))

    def test_blocks_scale_with_their_prompt(self, tmp_path: Path) -> None:
        path = jsonl_file(tmp_path, block_entry(1024, [1, 2]))
        (one,) = read_trace(path, TraceScale(lengths=0.1))
        assert (one.prompt_tokens, one.block_tokens) == (102, 51)

    def test_traces_merge_by_arrival(self, tmp_path: Path) -> None:
        chat = read_trace(csv_file(tmp_path, "0,1,1", "2,1,1"), service_class="realtime")
        other = [TraceRequest(1.0, 1, 1)]
        merged = merge((chat, other))
        assert [one.arrival_seconds for one in merged] == [0, 1, 2]
        assert [one.service_class for one in merged] == ["realtime", None, "realtime"]


class TestPrompts:
    def prompt(self, prompts: SyntheticPrompts, number: int, **fields: object) -> tuple[int, ...]:
        values = {"arrival_seconds": 0.0, "prompt_tokens": 8, "output_tokens": 1, **fields}
        return prompts.request(TraceRequest(**values), number, "standard").prompt  # type: ignore[arg-type]

    def test_prompts_share_exactly_their_leading_blocks(self) -> None:
        prompts = SyntheticPrompts()
        one = self.prompt(prompts, 0, block_ids=(7, 8), block_tokens=5)
        two = self.prompt(prompts, 1, block_ids=(7, 9), block_tokens=5)
        far = self.prompt(prompts, 2, block_ids=(7, 8), block_tokens=5, source="other")
        assert len(one) == 8
        assert one[:5] == two[:5]
        assert not set(one[5:]) & set(two[5:])
        assert not set(far) & {*one, *two}

    def test_other_prompts_and_answers_are_their_own(self) -> None:
        prompts = SyntheticPrompts()
        tokens = [self.prompt(prompts, number)[0] for number in range(3)]
        blocks = self.prompt(prompts, 3, block_ids=(2,), block_tokens=8)
        assert len({*tokens, *blocks, answer_token(request_id(3))}) == 5
