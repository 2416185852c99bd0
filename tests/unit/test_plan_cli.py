"""`octavo plan` as a command line: replays, profiles, and what is said about wrong input."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest

from octavo.cli import main as cli
from octavo.plan.learned import step_seconds
from octavo.plan.profile import default_profile, read_profile
from octavo.schedule.cost import CostProfile
from tiny import make_tiny_gguf


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in [name for name in os.environ if name.startswith("OCTAVO_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    lines = [f"{number * 0.5},{40 + number % 3},{5 + number % 2}" for number in range(20)]
    path.write_text("\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *lines)))
    return str(path)


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.run(["plan", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    status, out, err = outcome(capsys, "simulate", "--json", "-q", *arguments)
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert isinstance(report, dict)
    return report


class TestSimulate:
    def test_the_table_says_what_was_replayed(
        self, capsys: pytest.CaptureFixture[str], trace: str
    ) -> None:
        status, out, err = outcome(capsys, "simulate", "--trace", trace, "--gap-scale", "2")
        assert status == 0
        assert "20 requests, gaps x 2, lengths x 1" in out
        for word in ("TTFT", "TPOT", "inter-token", "queue", "goodput", "preemptions", "busy"):
            assert word in out
        assert "times as fast" in err

    def test_two_runs_print_the_same(self, capsys: pytest.CaptureFixture[str], trace: str) -> None:
        assert simulated(capsys, "--trace", trace) == simulated(capsys, "--trace", trace)

    def test_scaling_and_classes_reach_the_replay(
        self, capsys: pytest.CaptureFixture[str], trace: str
    ) -> None:
        options = ("--gap-scale", "4", "--length-scale", "0.5", "--limit", "10")
        report = simulated(
            capsys, "--trace", f"realtime={trace}", "--trace", f"batch={trace}", *options
        )
        classes = report["classes"]
        assert isinstance(classes, list)
        assert [(one["name"], one["offered"]) for one in classes] == [
            ("realtime", 10),
            ("batch", 10),
        ]
        # 40, 41, 42, ... halved and rounded.
        assert classes[0]["prompt_tokens"] == 4 * 20 + 3 * 20 + 3 * 21
        assert report["span_seconds"] >= 9 * 0.5 * 4  # type: ignore[operator]
        assert report["scale"] == {"gaps": 4, "lengths": 0.5, "limit": 10}

    def test_settings_reach_the_scheduler(
        self, capsys: pytest.CaptureFixture[str], trace: str
    ) -> None:
        crowd = ("--trace", trace, "--gap-scale", "0.001")
        one = simulated(capsys, *crowd, "--set", "scheduler.max_batch_size=1")
        many = simulated(capsys, *crowd)
        assert one["steps"]["mean_rows"] == 1  # type: ignore[index]
        assert many["steps"]["mean_rows"] > 4  # type: ignore[index]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--trace", "none.csv"), "none.csv: cannot be read"),
            (("--trace", "nobody={trace}"), "service_class"),
            (("--trace", "{trace}", "--gap-scale", "0"), "gap scale"),
            (("--trace", "{trace}", "--profile", "{trace}"), "is not JSON"),
            (("--trace", "{trace}", "--set", "memory.kv_bytes=1KB"), "memory.kv_bytes"),
        ],
    )
    def test_wrong_input_is_one_line(
        self,
        capsys: pytest.CaptureFixture[str],
        trace: str,
        arguments: tuple[str, ...],
        message: str,
    ) -> None:
        filled = [argument.replace("{trace}", trace) for argument in arguments]
        status, out, err = outcome(capsys, "simulate", "-q", *filled)
        assert (status, out) == (1, "")
        assert message in err
        assert err.count("\n") == 1

    def test_a_trace_is_needed(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert outcome(capsys, "simulate")[0] == 2


class TestCalibrate:
    def test_a_model_becomes_a_profile_that_replays(
        self, capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path
    ) -> None:
        model = str(make_tiny_gguf(tmp_path / "tiny.gguf"))
        status, out, err = outcome(capsys, "calibrate", model, "-q", "--set", "compute.threads=1")
        assert (status, err) == (0, "")
        path = tmp_path / "home" / "profiles" / "tiny.json"
        assert str(path) in out
        profile = read_profile(path)
        assert (profile.cost.model, profile.engine.layers, profile.engine.threads) == (
            "tiny.gguf",
            2,
            1,
        )
        # Keys and values of 2 heads of 16 numbers in 2 bytes each.
        assert profile.engine.layer_token_bytes == 2 * 2 * 16 * 2
        assert profile.steps > 12
        report = simulated(capsys, "--trace", trace, "--profile", str(path))
        assert report["profile"]["cost"]["model"] == "tiny.gguf"  # type: ignore[index]

    def test_a_file_that_cannot_be_written_is_named(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        model = str(make_tiny_gguf(tmp_path / "tiny.gguf"))
        (tmp_path / "file").write_text("")
        target = str(tmp_path / "file" / "profile.json")
        status, _, err = outcome(capsys, "calibrate", model, "-q", "--output", target)
        assert status == 1
        assert f"{target}: cannot be written" in err


METRICS = """\
octavo_step_cost_seconds{model_name="m",per="constant"} 0.008
octavo_step_cost_seconds{model_name="m",per="token"} 0.001
octavo_step_cost_seconds{model_name="m",per="decode_row"} 0.002
octavo_step_cost_seconds{model_name="m",per="past_token"} 1e-06
octavo_step_cost_seconds{model_name="m",per="chunk_square"} 0.0
octavo_step_cost_seconds{model_name="m",per="between"} 0.004
octavo_step_work_total{model_name="m",per="constant"} 1490.0
octavo_step_work_total{model_name="m",per="token"} 2000.0
octavo_step_work_total{model_name="m",per="decode_row"} 1540.0
octavo_step_work_total{model_name="m",per="past_token"} 3e+06
octavo_step_work_total{model_name="m",per="chunk_square"} 2e+06
octavo_engine_work_seconds_total{model_name="m"} 20.0
octavo_prediction_error{model_name="m"} 0.06
octavo_engine_steps_total{model_name="m"} 1500.0
"""


class TestLearn:
    def learn(
        self, capsys: pytest.CaptureFixture[str], folder: Path, *texts: str
    ) -> tuple[int, str, Path]:
        files, output = [], folder / "served.json"
        for number, text in enumerate(texts):
            files.append(folder / f"metrics-{number}.txt")
            files[-1].write_text(text)
        status, _, err = outcome(capsys, "learn", *map(str, files), "--output", str(output))
        return status, err, output

    def test_the_step_times_of_a_server_become_a_profile(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        later = METRICS.replace("0.008", "0.016").replace("1500.0", "1690.0")
        later = later.replace("1490.0", "1680.0").replace(" 20.0", " 24.56")
        status, err, output = self.learn(capsys, tmp_path, METRICS, later)
        assert status == 0
        assert err.startswith("m has the memory of SmolLM2-135M")
        profile, base = read_profile(output), default_profile()
        assert dataclasses.asdict(profile.cost) == {
            **dataclasses.asdict(base.cost),
            "model": "m",
            # Between the texts steps took twice what the means of their parts say.
            "constant": pytest.approx(2 * 0.012),
            "token": pytest.approx(2 * 0.001),
            "decode_row": pytest.approx(2 * 0.002),
            "past_token": pytest.approx(2e-6),
            "chunk_square": 0.0,
            "error": 0.06,
        }
        assert profile.between_seconds == 0.004
        assert (profile.steps, profile.engine) == (1690, base.engine)

    @pytest.mark.parametrize("seconds", [20.0, 40.0])
    def test_one_text_is_scaled_to_all_steps_since_the_start(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, seconds: float
    ) -> None:
        text = METRICS.replace(" 20.0", f" {seconds}")
        _, _, output = self.learn(capsys, tmp_path, text, text)
        assert read_profile(output).cost.token == pytest.approx(0.001 * seconds / 20.0)

    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            ([""], "have no step times of one engine"),
            (["{{{"], "are not in the format of Prometheus"),
            ([METRICS.replace("1500.0", "3.0")], "are of 3 steps"),
            ([METRICS.replace("1500.0", "NaN")], "have impossible step times"),
            ([METRICS.replace("1500.0", "+Inf")], "have impossible step times"),
            ([METRICS.replace("0.008", "NaN")], "have impossible step times"),
            ([METRICS.replace("0.008", "-1")], "have impossible step times"),
            ([METRICS, METRICS.replace('"m"', '"n"')], "are of several models: m, n"),
            (
                [re.sub(r"1[45][09]0\.0", "9000.0", METRICS).replace("2000.0", "10.0"), METRICS],
                "started again in between",
            ),
            ([METRICS + METRICS.replace('"m"', '"n"')], "are of several engines"),
            ([METRICS + METRICS], "are of several engines"),
            (
                [re.sub(r"(?m)(cost.*) .*$", r"\1 0", METRICS)],
                "constant: must not be 0 together with token",
            ),
            ([METRICS.replace(" 20.0", " 1e9")], "must be a number from 0 to 1000"),
            ([METRICS.replace("1500.0", "1e300")], "steps: must be a whole number"),
        ],
    )
    def test_what_is_no_such_text_is_refused(
        self,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        texts: list[str],
        message: str,
    ) -> None:
        status, err, output = self.learn(capsys, tmp_path, *texts)
        assert status != 0
        assert message in err
        assert not output.exists()

    def test_the_steps_between_two_texts_are_told_with_what_they_cost_by_a_profile(self) -> None:
        later = METRICS.replace("2000.0", "2300.0").replace("1490.0", "1500.0")
        cost = CostProfile(0.008, 0.001, 0.002, 1e-6, 0.0)
        measured, predicted = step_seconds(cost, METRICS, later.replace(" 20.0", " 20.5"))
        assert (measured, predicted) == pytest.approx((0.5, 10 * 0.008 + 300 * 0.001))

    def test_what_is_no_file_is_written_to_and_stays(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        metrics, pipe = tmp_path / "metrics.txt", tmp_path / "pipe"
        metrics.write_text(METRICS)
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        status, _, _ = outcome(capsys, "learn", str(metrics), "--output", str(pipe))
        assert status == 0
        assert pipe.is_fifo()
        assert json.loads(os.read(reader, 1 << 16))["model"] == "m"
        os.close(reader)
