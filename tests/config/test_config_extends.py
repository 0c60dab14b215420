"""Study files that say only how they differ from another one."""

from pathlib import Path

import pytest

from fractionate.config import StudyFileError, read_study

BASE = """
name: base
world: {kind: sandbox}
method:
  rollout: {kind: spectrum, lam: 0.5}
  temperature: {teacher_rollout: 1.0}
optimizer: {lr: 1e-3, clip: 1.0}
vary: {optimizer.lr: [1e-3, 2e-3]}
seeds: [1, 2]
"""


def _write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / f"{list(files)[-1]}.yaml"


def test_fields_are_merged_one_by_one(tmp_path):
    path = _write(tmp_path, base=BASE, own="extends: base.yaml\nname: own\noptimizer: {clip: null}")
    study = read_study(path)
    assert (study.name, study.optimizer.lr, study.optimizer.clip) == ("own", 1e-3, None)
    assert study.seeds == (1, 2)


def test_factors_are_replaced_as_a_whole(tmp_path):
    own = "extends: base.yaml\nname: own\nvary: {method.reduction: [token_mean, sequence_mean]}"
    assert list(read_study(_write(tmp_path, base=BASE, own=own)).vary) == ["method.reduction"]


def test_a_part_of_another_kind_brings_no_field_of_the_old_one(tmp_path):
    own = "extends: base.yaml\nname: own\nmethod: {rollout: {kind: teacher}}"
    method = read_study(_write(tmp_path, base=BASE, own=own)).method
    assert method.rollout.kind == "teacher"
    assert method.temperature.teacher_rollout == 1.0


def test_a_part_of_the_same_kind_keeps_its_other_fields(tmp_path):
    own = "extends: base.yaml\nname: own\nmethod: {rollout: {kind: spectrum, alpha: 0.1}}"
    rollout = read_study(_write(tmp_path, base=BASE, own=own)).method.rollout
    assert (rollout.lam, rollout.alpha) == (0.5, 0.1)


def test_files_extend_over_several_steps_and_from_other_folders(tmp_path):
    (tmp_path / "below").mkdir()
    _write(tmp_path / "below", base=BASE, middle="extends: base.yaml\nname: middle\nseeds: [7]")
    own = _write(tmp_path, own="extends: below/middle.yaml\nname: own")
    assert read_study(own).seeds == (7,)


def test_overrides_come_last(tmp_path):
    path = _write(tmp_path, base=BASE, own="extends: base.yaml\nname: own\nseeds: [7]")
    assert read_study(path, ["seeds=[9]"]).seeds == (9,)


@pytest.mark.parametrize("other", ["missing.yaml", "own.yaml", "[base.yaml]"])
def test_what_cannot_be_extended_is_named(tmp_path, other: str):
    path = _write(tmp_path, base=BASE, own=f"extends: {other}\nname: own")
    with pytest.raises(StudyFileError, match=r"extends|missing\.yaml"):
        read_study(path)


def test_a_circle_of_files_is_refused(tmp_path):
    path = _write(tmp_path, a="extends: b.yaml\nname: a", b="extends: a.yaml\nname: b")
    with pytest.raises(StudyFileError, match="extends"):
        read_study(path)
