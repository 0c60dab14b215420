"""Records and checkpoints survive interruptions."""

import dataclasses

import pytest
import torch

from fractionate.distill.journal import CheckpointError, Journal
from fractionate.records import StepRecord, read_jsonl


def _record(step: int) -> StepRecord:
    numbers = dict.fromkeys([f.name for f in dataclasses.fields(StepRecord)], 0)
    return StepRecord(**{**numbers, "step": step})


def test_a_fresh_folder_starts_at_step_0(tmp_path):
    assert Journal(tmp_path, tmp_path).resume() == (0, {})


def test_resume_finds_the_newest_checkpoint_and_drops_later_records(tmp_path):
    journal = Journal(tmp_path, tmp_path)
    for step in range(1, 6):
        journal.record(_record(step))
        if step in (2, 4):
            journal.checkpoint(step, {"weight": torch.tensor([float(step)])})
    step, state = Journal(tmp_path, tmp_path).resume()
    assert (step, state["weight"].item()) == (4, 4.0)
    records = read_jsonl(tmp_path / "steps.jsonl", StepRecord)
    assert [record.step for record in records] == [1, 2, 3, 4]


def test_a_checkpoint_that_was_being_written_is_ignored(tmp_path):
    journal = Journal(tmp_path, tmp_path)
    journal.record(_record(1))
    journal.checkpoint(1, {"weight": torch.zeros(1)})
    (tmp_path / "checkpoints" / "2.writing").mkdir()
    assert Journal(tmp_path, tmp_path).resume()[0] == 1


def test_a_record_line_cut_short_by_a_kill_is_dropped(tmp_path):
    journal = Journal(tmp_path, tmp_path)
    journal.record(_record(1))
    journal.checkpoint(1, {"weight": torch.zeros(1)})
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": 2, "lr"')
    journal.resume()
    assert len(read_jsonl(tmp_path / "steps.jsonl", StepRecord)) == 1


def test_an_unreadable_checkpoint_names_the_file_and_the_mend(tmp_path):
    journal = Journal(tmp_path, tmp_path)
    journal.checkpoint(3, {"weight": torch.zeros(1)})
    (tmp_path / "checkpoints" / "3" / "state.safetensors").write_bytes(b"\x00")
    with pytest.raises(CheckpointError, match=r"checkpoints.3.*Remove the folder"):
        journal.resume()
