"""The benchmarks measure what they say, and every script runs."""

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks import models, report
from benchmarks.__main__ import SECTIONS
from benchmarks.common import Timings, extra_memory, interleave, spread
from benchmarks.results import Row, Section, Table, summary
from benchmarks.turns import take_turns

from fractionate.rollouts import sample

ROOT = Path(__file__).parent.parent


def test_ratios_are_taken_within_a_repeat():
    timings = Timings({"ours": [1.0, 10.0, 1.0], "peer": [2.0, 30.0, 4.0]})
    ratio = timings.ratio("peer", "ours")
    assert (ratio.least, ratio.median, ratio.most) == (2.0, 3.0, 4.0)


def test_interleaving_drops_the_first_repeats_and_alternates():
    calls: list[str] = []
    work = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    timings = interleave(work, repeats=2, warmup=1)
    assert "".join(calls) == "abbaab"
    assert all(len(seconds) == 2 for seconds in timings.seconds.values())


def test_loops_take_their_steps_in_turn():
    order: list[str] = []

    def loop(name: str):
        def steps(step_done):
            for _ in range(3):
                order.append(name)
                step_done()

        return steps

    timings = take_turns({"a": loop("a"), "b": loop("b")}, steps=2, warmup=1)
    assert "".join(order) == "abbaab"
    assert len(timings.seconds["a"]) == 2


def test_what_a_loop_raises_is_raised():
    def broken(_):
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        take_turns({"a": broken}, steps=1, warmup=0)


def test_a_loop_that_ends_early_is_an_error():
    with pytest.raises(RuntimeError, match="the loop of a ended after 1 steps"):
        take_turns({"a": lambda step_done: step_done()}, steps=2, warmup=0)


def test_only_the_loop_at_its_turn_is_timed():
    def slow(step_done):
        for _ in range(2):
            time.sleep(0.05)
            step_done()

    def fast(step_done):
        for _ in range(2):
            step_done()

    timings = take_turns({"slow": slow, "fast": fast}, steps=2, warmup=0)
    assert timings.of("slow").least >= 0.05 > timings.of("fast").most
    assert threading.active_count() < 10


def _allocate(mebibytes: int):
    return lambda: torch.ones(mebibytes * 2**20, dtype=torch.uint8)


@pytest.mark.slow
def test_extra_memory_is_what_a_call_takes():
    assert extra_memory(_allocate, 64) / 2**20 == pytest.approx(64, abs=6)


def _row(value: float, **changes) -> Row:
    row = Row("w", "1 ms", "TRL 2 ms", spread([value]), must=1.5, aim=3.0)
    return replace(row, **changes)


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (_row(1.4), "no"),
        (_row(1.5), "must"),
        (_row(3.0), "aim"),
        (_row(1.0, must=None, aim=None), "-"),
        (_row(1.0, must=None), "no"),
        (_row(270.0, must=270, aim=160, at_most=True), "must"),
        (_row(271.0, must=270, aim=160, at_most=True), "no"),
        (_row(160.0, must=270, aim=160, at_most=True), "aim"),
    ],
)
def test_a_mark_is_met_or_not(row: Row, met: str):
    assert row.met == met
    assert summary([row]).rows[0][-1] == met


def test_sections_survive_their_file_and_reach_the_report(tmp_path):
    section = Section("floor", "Title", "command", [_row(2)], [Table("T", ["a"], [["1"]])])
    section.save(tmp_path)
    assert report.merge(tmp_path, SECTIONS) == report.load(tmp_path / "results.json") == [section]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    report.write_report([section], page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| w | 1 ms | TRL 2 ms | 2.00x | 1.50x | 3.00x | must |" in text


def test_rows_stop_as_often_as_asked():
    sizes = replace(models.TINY, vocabulary=256)
    prompts = [models.prompt_ids(5, 256, i) for i in range(400)]
    never = sample(models.random_model(sizes, seed=0), prompts[:20], max_new_tokens=30, seed=0)
    often = models.random_model(sizes, seed=0, stop=0.1)
    lengths = sample(often, prompts, max_new_tokens=200, seed=0).completions.lengths
    assert never.completions.lengths.tolist() == [30] * 20
    assert float(lengths.double().mean()) == pytest.approx(10, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_every_benchmark_runs_and_prints_its_table(name: str, tmp_path):
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--output", str(tmp_path)]
    few = ["--repeats", "1", "--warmup", "1"]
    done = subprocess.run([*command, *few], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    section = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert section["title"] in done.stdout
    assert section["rows"] or section["tables"]
    assert all(row["measured"]["median"] > 0 for row in section["rows"])
