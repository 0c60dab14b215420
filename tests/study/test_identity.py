"""Inputs by content; what is missing is named with its field and the mend."""

import os

import pytest
from fakes import make_checkpoints, make_study, make_tree

from fractionate.config import StudyFileError
from fractionate.config.files import parse_study
from fractionate.study.identity import (
    data_inputs,
    hash_folder,
    identify_model,
    shipped_checkpoints,
    student_input,
    student_source,
    teacher_input,
    teacher_source,
)


def with_models(folder, **models):
    tree = make_tree(folder, vary={})
    del tree["world"]
    return parse_study({**tree, "models": models})


def test_sandbox_sources_are_folders_by_kind_and_number(tmp_path):
    study = make_study(tmp_path / "models")
    assert student_source(study, 1) == str(tmp_path / "models" / "components-1")
    assert teacher_source(study) == str(tmp_path / "models" / "teacher-0")


def test_shipped_models_lie_in_the_package():
    assert shipped_checkpoints().parts[-3:] == ("fractionate", "models", "sandbox_checkpoints")


def test_a_missing_sandbox_model_says_how_to_build_it(tmp_path):
    study = make_study(tmp_path / "models")
    with pytest.raises(StudyFileError) as error:
        student_source(study, 2)
    assert "world.checkpoints" in str(error.value)
    assert "`fractionate sandbox build components`" in str(error.value)
    assert "world.bases: 2" in str(error.value)


def test_a_folder_is_known_by_names_and_contents(tmp_path):
    make_checkpoints(tmp_path / "a")
    make_checkpoints(tmp_path / "b")
    a, b = tmp_path / "a" / "teacher-0", tmp_path / "b" / "teacher-0"
    same = hash_folder(a, field="x")
    assert hash_folder(b, field="x") == same
    (b / "model.safetensors").rename(b / "renamed.safetensors")
    assert hash_folder(b, field="x") != same


def test_descriptions_and_hidden_files_are_no_content(tmp_path):
    folder = make_checkpoints(tmp_path / "a") / "teacher-0"
    before = hash_folder(folder, field="x")
    (folder / "README.md").write_text("made on a Monday")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("")
    assert hash_folder(folder, field="x") == before


def test_an_edited_file_of_the_same_size_is_noticed(tmp_path):
    folder = make_checkpoints(tmp_path / "a") / "teacher-0"
    before = hash_folder(folder, field="x")
    path = folder / "model.safetensors"
    path.write_text(path.read_text()[::-1])
    os.utime(path, ns=(1, 1))
    assert hash_folder(folder, field="x") != before


def test_hub_models_are_id_and_revision(tmp_path):
    study = with_models(tmp_path / "m", student="Qwen/Qwen2.5-1.5B", teacher="Qwen/Qwen2.5-7B",
                        student_revision="abc")  # fmt: skip
    assert student_input(study).identity == {"hub": "Qwen/Qwen2.5-1.5B", "revision": "abc"}
    assert teacher_input(study).identity == {"hub": "Qwen/Qwen2.5-7B", "revision": None}


def test_a_teacher_that_is_the_student_is_the_same_input(tmp_path):
    models = {"student": "Qwen/Qwen2.5-1.5B", "teacher": "student", "student_revision": "abc"}
    study = with_models(tmp_path / "m", **models, teacher_context={"demonstration": True})
    assert teacher_input(study) == student_input(study)


def test_a_gguf_file_is_known_by_its_bytes(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    identity = identify_model(str(path), None, field="models.student").identity
    assert list(identity) == ["sha256"]


@pytest.mark.parametrize("source", ["./models/mine", "models/a/b", "/nowhere/model", "a.gguf", ""])
def test_a_missing_local_model_names_the_field(source):
    with pytest.raises(StudyFileError, match=r"models\.student: no such file or folder|no config"):
        identify_model(source, None, field="models.student")


def test_a_folder_without_configuration_is_no_model(tmp_path):
    with pytest.raises(StudyFileError, match=r"models\.teacher: .* has no config\.json"):
        identify_model(str(tmp_path), None, field="models.teacher")


def test_a_file_of_another_kind_is_no_model(tmp_path):
    (tmp_path / "model.pt").write_text("x")
    with pytest.raises(StudyFileError, match=r"models\.teacher: .*model\.pt is a file of a kind"):
        identify_model(str(tmp_path / "model.pt"), None, field="models.teacher")


def test_a_missing_data_file_names_the_field(tmp_path):
    task = {"kind": "table", "path": str(tmp_path / "rows.jsonl"), "prompt": "q", "answer": "a"}
    study = parse_study({"name": "t", "models": {"student": "a/b", "teacher": "c/d"}, "task": task})
    with pytest.raises(StudyFileError, match=r"task\.path: no such file: .*rows\.jsonl"):
        data_inputs(study)
    (tmp_path / "rows.jsonl").write_text("{}\n")
    found = data_inputs(study)
    assert list(found) == ["data.path"]
    assert list(found["data.path"].identity) == ["sha256"]


def with_task(task):
    models = {"student": "a/b", "teacher": "c/d", "student_revision": "1", "teacher_revision": "1"}
    return parse_study({"name": "t", "models": models, "task": task})


def test_hub_data_is_known_by_id_and_revision():
    found = data_inputs(with_task({"kind": "gsm8k"}))
    assert {name: source.identity for name, source in found.items()} == {
        "data.source": {"hub": "openai/gsm8k", "revision": None},
        "data.test_source": {"hub": "openai/gsm8k", "revision": None},
    }


def test_a_folder_of_data_is_known_by_its_files_and_its_card(tmp_path):
    (tmp_path / "train.jsonl").write_text("{}")
    study = with_task({"kind": "science", "source": [{"path": str(tmp_path)}, {"hub": "a/b"}]})
    found = data_inputs(study)
    assert list(found) == ["data.source.0", "data.source.1"]
    assert list(found["data.source.0"].identity) == ["sha256"]
    (tmp_path / "README.md").write_text("configs: ...")
    assert list(data_inputs(study)["data.source.0"].identity) == ["sha256", "card"]


def test_missing_data_says_how_the_hub_is_written():
    study = with_task({"kind": "medreason", "source": "gone.jsonl"})
    with pytest.raises(
        StudyFileError, match=r"task\.source: no such file: gone.*\{hub: owner/name"
    ):
        data_inputs(study)
