"""The comparison as text, as JSON and as a page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape

from benchmarks.peers.compare import Ratio, Row, compare, remarks
from benchmarks.peers.engine import Engine
from benchmarks.peers.rounds import OURS, Run
from benchmarks.serving.load import Load
from benchmarks.serving.report import machine

_FULL_BAR_RATIO = 6.0
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .6rem; text-align: right; }
th:first-child, td:first-child, td:nth-child(2), th:nth-child(2) { text-align: left; }
small { opacity: .7; }
.bar { height: .35rem; border-radius: .2rem; background: #2a8; margin-left: auto; }
.bar.behind { background: #c53; }
"""


@dataclass(frozen=True, slots=True)
class Report:
    """All that a comparison found. `skipped`: why a peer was not measured, by its name."""

    model: str
    threads: int
    rounds: int
    loads: Mapping[str, Load]
    engines: Sequence[Engine]
    skipped: Mapping[str, str]
    runs: Sequence[Run]

    def rows(self) -> list[Row]:
        return compare(self.runs)

    def names(self) -> list[str]:
        """Engines with runs, Octavo first."""
        measured = {run.engine for run in self.runs}
        return [engine.name for engine in self.engines if engine.name in measured]

    def tree(self) -> dict[str, object]:
        """For JSON."""
        return {
            "machine": machine(),
            "model": self.model,
            "threads": self.threads,
            "rounds": self.rounds,
            "loads": {name: _load(load) for name, load in self.loads.items()},
            "engines": {
                engine.name: {"version": engine.version, "weights": engine.weights.name}
                for engine in self.engines
            },
            "skipped": dict(self.skipped),
            "remarks": remarks(self.runs),
            "rows": [asdict(row) for row in self.rows()],
            "runs": [asdict(run) for run in self.runs],
        }

    def text(self) -> str:
        """A table for a terminal or a Markdown page."""
        names = self.names()
        head = ["load", "figure (median)", *names]
        lines = [_line(head), _line(["---"] * len(head))]
        for row in self.rows():
            cells = [_cell(row, name) for name in names]
            lines.append(_line([row.load, row.figure, *cells]))
        lines.append(
            f"In brackets: {OURS} against the peer, above 1 {OURS} is better; "
            "then the single rounds' least and most."
        )
        lines += [f"{engine.name}: {_about(engine)}" for engine in self.engines]
        lines += [f"skipped: {name}: {why}" for name, why in self.skipped.items()]
        return "\n".join([*lines, *remarks(self.runs)])

    def html(self) -> str:
        """The page."""
        names = self.names()
        place = machine()
        body = [
            f"<h1>{OURS} beside other engines</h1>",
            f"<p>{_text(self.model)}, threads: {self.threads} each, rounds: {self.rounds}, "
            f"on {_text(place['cpu'])}, {_text(place['system'])}.</p>",
            "<table><tr><th>load<th>figure (median)"
            + "".join(f"<th>{_text(name)}" for name in names),
            *(_html_row(row, names) for row in self.rows()),
            "</table>",
            f"<p><small>Below a peer's number: {OURS} against it, above 1 {OURS} is better, and "
            "the least and most of single rounds.</small></p>",
            "<h2>Loads</h2>",
            _html_list(f"{name}: {_load(load)}" for name, load in self.loads.items()),
            "<h2>Engines</h2>",
            _html_list(f"{engine.name}: {_about(engine)}" for engine in self.engines),
        ]
        noted = [f"{name} was not measured: {why}" for name, why in self.skipped.items()]
        noted += remarks(self.runs)
        if noted:
            body += ["<h2>To note</h2>", _html_list(noted)]
        head = f"<title>{OURS} beside other engines</title><style>{_STYLE}</style>"
        return (
            f'<!doctype html>\n<html lang="en"><meta charset="utf-8">{head}\n'
            + "\n".join(body)
            + "\n</html>\n"
        )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _load(load: Load) -> str:
    """Without the seed, which is the number of the round."""
    return str(load).removesuffix(f", seed {load.seed}")


def _about(engine: Engine) -> str:
    return f"{engine.version}, {engine.weights.name}"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _cell(row: Row, name: str) -> str:
    if name not in row.medians:
        return "-"
    number, ratio = _number(row.medians[name]), row.ratios.get(name)
    return number if ratio is None else f"{number} ({_ratio(ratio)})"


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.median:.2f}; {ratio.low:.2f} to {ratio.high:.2f}"


def _html_row(row: Row, names: Sequence[str]) -> str:
    return f"<tr><td>{_text(row.load)}<td>{_text(row.figure)}" + "".join(
        _html_cell(row, name) for name in names
    )


def _html_cell(row: Row, name: str) -> str:
    if name not in row.medians:
        return "<td>-"
    number, ratio = _number(row.medians[name]), row.ratios.get(name)
    if ratio is None:
        return f"<td>{number}"
    width = 100 * min(ratio.median / _FULL_BAR_RATIO, 1.0)
    kind = "bar" if ratio.median >= 1 else "bar behind"
    return (
        f"<td>{number}<br><small>{_ratio(ratio)}</small>"
        f'<div class="{kind}" style="width:{width:.0f}%"></div>'
    )


def _html_list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{_text(item)}" for item in items) + "</ul>"


def _text(value: object) -> str:
    return escape(str(value))
