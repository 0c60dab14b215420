"""Benchmarks of the installed lm-evaluation-harness: names, results, and whole runs on local data.

The paper's seven run with their own task files on a few documents of our own, written in the
columns of the public data sets.
"""

import json
import math
from pathlib import Path

import pytest
import torch

import tiny
from fractionate.config import Harness
from fractionate.config.measure import PAPER_BENCHMARKS
from fractionate.metrics.forgetting import (
    balanced_score,
    benchmark_forgetting,
    benchmark_scores,
    benchmark_table,
)
from fractionate.metrics.harness import load_benchmarks, resolve
from fractionate.metrics.harness_tasks import HarnessError
from fractionate.models.load import wrap

lm_tasks = pytest.importorskip("lm_eval.tasks", reason="lm-evaluation-harness is not installed")

LOCAL = Path(__file__).parent.parent / "data" / "harness"
NAMES = ("local_choice", "local_words", "local_likely")
EVERYTHING = {"include": LOCAL, "limit": None}


def model(seed=1, **changes):
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = tiny.TEMPLATE + " "
    return wrap(tiny.llama(seed, **changes), tokenizer)


def measured(subject, config):
    return load_benchmarks(config).measure(subject, seed=0)


@pytest.fixture(scope="module")
def records():
    return measured(model(), Harness(tasks=NAMES, **EVERYTHING))


def test_the_papers_tasks_and_results_are_the_installed_harness_s_own():
    targets = resolve(Harness(allow_code=True))
    assert {target.name: target.result for target in targets} == dict(PAPER_BENCHMARKS)
    assert {len(target.leaves) for target in targets} == {1, 14}
    kinds = {leaf.output_type for target in targets for leaf in target.leaves}
    assert kinds == {"multiple_choice", "generate_until"}


def test_code_is_left_out_of_the_default_until_asked_for():
    assert "humaneval_instruct" not in Harness().names
    assert "humaneval_instruct" in Harness(allow_code=True).names


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(  # a name like none of the folders: the whole harness is read
            {"tasks": ("mmlu_proo",)},
            r"no task or group 'mmlu_proo'.*mmlu_pro",
            marks=pytest.mark.slow,
        ),
        ({"tasks": ("humaneval",)}, r"'humaneval' runs programs.*allow_code: true"),
        ({"tasks": ("mbpp",)}, r"'mbpp' runs programs"),
        (
            {"tasks": ("ifeval",), "results": {"ifeval": "acc,none"}},
            r"'ifeval'.*no result 'acc,none'.*prompt_level_strict_acc,none",
        ),
        ({"tasks": ("local_rolling",), "include": LOCAL}, "mean over documents.*none of that kind"),
        ({"tasks": ("bbq",), "include": LOCAL / "gone"}, r"forgetting\.include: no such folder"),
    ],
)
def test_wrong_names_fail_before_any_data_is_read(fields, message):
    with pytest.raises(HarnessError, match=message):
        resolve(Harness(**fields))


def test_missing_data_name_the_task_and_the_mend():
    with pytest.raises(HarnessError, match=r"'truthfulqa_mc1' \(truthfulqa/.*HF_HOME.*include"):
        load_benchmarks(Harness(tasks=("truthfulqa_mc1",)))


def test_settings_about_other_tasks_are_refused():
    with pytest.raises(ValueError, match="speaks of 'bbq', which is not among the tasks"):
        Harness(tasks=("ifeval",), num_fewshot={"bbq": 2})
    with pytest.raises(ValueError, match="names a task twice"):
        Harness(tasks=("ifeval", "ifeval"))


def test_one_record_per_document_in_the_order_of_the_tasks(records):
    assert [record.item for record in records] == [
        f"{name}/{i}" for name, n in zip(NAMES, (5, 3, 3), strict=True) for i in range(n)
    ]
    assert {record.suite for record in records} == {f"benchmark:{name}" for name in NAMES}
    assert all(record.value in (0.0, 1.0) for record in records)


def test_a_choice_is_the_likeliest_continuation(records):
    subject = model()
    rows = [json.loads(line) for line in (LOCAL / "choice.jsonl").read_text().splitlines()]
    for record, row in zip(records, rows, strict=False):
        scores = []
        for choice in row["choices"]:
            ids = subject.tokenizer(f"<bos> {row['question']} {choice}")["input_ids"]
            with torch.no_grad():
                logits = subject.module(torch.tensor([ids])).logits[0]
            scores.append(float(logits[-2].log_softmax(-1)[ids[-1]]))
        assert record.value == float(scores.index(max(scores)) == row["gold"])


def test_gold_labels_give_balanced_accuracy(records):
    choices = [record for record in records if record.suite == "benchmark:local_choice"]
    values = {0: [], 1: []}
    for record in choices:
        (label,) = record.reasons
        values[int(label.removeprefix("gold "))].append(record.value)
    assert (len(values[0]), len(values[1])) == (3, 2)
    expected = 50 * (sum(values[0]) / 3 + sum(values[1]) / 2)
    assert balanced_score(choices) == pytest.approx(expected)


def test_truncated_texts_are_counted(records):
    words = [record for record in records if record.suite == "benchmark:local_words"]
    assert all(record.truncated == (record.tokens >= 6) for record in words)
    assert all(record.tokens > 0 for record in words)


def test_the_same_model_gives_the_same_records(records):
    assert measured(model(), Harness(tasks=NAMES, **EVERYTHING)) == records


def test_the_batch_size_changes_nothing_and_the_model_stays_as_it_was(records):
    subject = model()
    before = [parameter.clone() for parameter in subject.module.parameters()]
    pad = subject.tokenizer.pad_token
    again = measured(subject, Harness(tasks=NAMES, batch_size=3, **EVERYTHING))
    assert again == records
    assert subject.tokenizer.pad_token == pad
    for old, new in zip(before, subject.module.parameters(), strict=True):
        assert torch.equal(old, new)


def test_a_limit_takes_the_first_documents(records):
    first = measured(model(), Harness(tasks=NAMES[:1], include=LOCAL, limit=2))
    assert first == records[:2]


def test_a_group_is_the_documents_of_its_tasks(records):
    config = Harness(tasks=("local_group",), **EVERYTHING)
    grouped = measured(model(), config)
    alone = [r for r in records if r.suite in ("benchmark:local_choice", "benchmark:local_likely")]
    assert [(r.item, r.value) for r in grouped] == [(r.item, r.value) for r in alone]
    assert benchmark_scores(grouped)["local_group"] == pytest.approx(
        100 * sum(r.value for r in alone) / 8
    )


def test_versions_shots_and_sizes_are_described():
    config = Harness(tasks=NAMES, num_fewshot={"local_words": 1}, include=LOCAL, limit=2)
    described = load_benchmarks(config).describe()
    assert described["harness"].startswith("0.")
    choice, words, _ = described["benchmarks"]
    assert choice["versions"] == {"local_choice": "1.5"}
    assert (choice["documents"], choice["available"]) == (2, 5)
    assert words["num_fewshot"] == {"local_words": 1}
    assert words["result"] == "exact_match,number"


def test_standard_errors_are_those_of_the_records(records):
    table = benchmark_table(records)["local_choice"]
    values = torch.tensor([r.value for r in records if r.suite == "benchmark:local_choice"])
    assert table["n"] == 5
    assert table["score"] == pytest.approx(100 * float(values.mean()))
    assert table["standard_error"] == pytest.approx(100 * float(values.std()) / math.sqrt(5))


def test_forgetting_is_base_minus_final(records):
    final = measured(model(2), Harness(tasks=NAMES, **EVERYTHING))
    found = benchmark_forgetting(records, final)
    before, after = benchmark_scores(records), benchmark_scores(final)
    assert found.mean_drop == pytest.approx(
        sum(before.values()) / 3 - sum(after.values()) / 3, abs=1e-9
    )


def test_a_model_without_a_template_is_refused():
    bare = tiny.tokenizer()
    bare.chat_template = None
    with pytest.raises(HarnessError, match="Set it to false"):
        measured(wrap(tiny.llama(1), bare), Harness(tasks=NAMES[:1], **EVERYTHING))


def test_a_context_too_short_for_the_answers_is_refused():
    with pytest.raises(HarnessError, match=r"'local_words' lets a model write 6 tokens.*holds 6"):
        measured(model(max_position_embeddings=6), Harness(tasks=NAMES[1:2], **EVERYTHING))


def test_programs_run_in_processes_of_their_own():
    config = Harness(tasks=("local_code",), allow_code=True, **EVERYTHING)
    assert [record.value for record in measured(model(), config)] == [1.0, 0.0, 0.0]


# ---------------------------------------------------------------- the paper's seven, end to end

QUESTION = {"question": "1 2 ?", "category": "law", "options": ["3", "4"], "answer": "A"}
MMLU = ("biology", "business", "chemistry", "computer science", "economics", "engineering",
        "health", "history", "law", "math", "other", "philosophy", "physics",
        "psychology")  # fmt: skip
EMOTIONS = {f"emotion{i}": name for i, name in enumerate(("Joy", "Fear", "Hope", "Calm"), 1)}
SCALE = {f"emotion{i}_score": i for i in range(1, 5)}
ANSWERS = {f"ans{i}": text for i, text in enumerate(("The first one", "The second one", "Unknown"))}
DOCUMENTS = {
    "truthfulqa_mc1": {
        "validation": [
            {"question": "1 2 ?", "mc1_targets": {"choices": ["3", "4"], "labels": [1, 0]}}
        ]
    },
    "toxigen": {
        "train": [],
        "test": [{"text": "1 2", "toxicity_ai": 5.0, "toxicity_human": 5.0}],
    },
    "bbq": {
        "test": [
            {
                "context": "1 2",
                "question": "3 ?",
                "context_condition": condition,
                "category": "Age",
                "label": 2,
                "question_polarity": "neg",
                "additional_metadata": {"stereotyped_groups": ["old"], "subcategory": "None"},
                "answer_info": {f"ans{i}": [t, g] for i, (t, g) in enumerate(
                    (("The first one", "old"), ("The second one", "nonOld"),
                     ("Unknown", "unknown")))},
                **ANSWERS,
            }
            for condition in ("ambig", "disambig")
        ]
    },
    "ifeval": {
        "train": [
            {
                "key": 1,
                "prompt": "1 2 ?",
                "instruction_id_list": ["punctuation:no_comma"],
                "kwargs": [{}],
            }
        ]
    },
    "eq_bench": {
        "validation": [
            {"prompt": "1 2 ?", "reference_answer_fullscale": str({**EMOTIONS, **SCALE})}
        ]
    },
    "humaneval_instruct": {
        "test": [
            {"task_id": "0", "prompt": "def f():\n    return 1\n", "entry_point": "f",
             "test": "def check(f):\n    assert f() == 1\n"},
        ]
    },
}  # fmt: skip
DOCUMENTS |= {
    f"mmlu_pro_{subject.replace(' ', '_')}": {
        split: [
            {**QUESTION, "question_id": 1, "category": subject, "answer_index": 0,
             "cot_content": "A: Let's think step by step. The answer is (A)."}
        ]
        for split in ("validation", "test")
    }
    for subject in MMLU
}  # fmt: skip


def write_local_copy(folder):
    """The harness's own task files, their data taken from files of ours."""
    own = Path(lm_tasks.__file__).parent
    for name, splits in DOCUMENTS.items():
        files = {}
        for split, rows in splits.items():
            if rows:
                path = folder / f"{name}-{split}.jsonl"
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
                files[split] = path.name
        (source,) = [
            path
            for path in own.glob(f"{'mmlu_pro' if name.startswith('mmlu') else name[:3]}*/*.yaml")
            if f"task: {name}" in path.read_text().replace('"', "").splitlines()
        ]
        (folder / f"{name}.yaml").write_text(
            f"include: {source}\ntask: {name}\ndataset_path: json\ndataset_name: null\n"
            f"training_split: null\ndataset_kwargs: {json.dumps({'data_files': files})}\n"
        )


def test_the_papers_benchmarks_run_on_local_documents(tmp_path):
    write_local_copy(tmp_path)
    config = Harness(include=tmp_path, allow_code=True, num_fewshot={"mmlu_pro": 1})
    silent = model(max_position_embeddings=4096, eos_token_id=0)
    with torch.no_grad():
        silent.module.lm_head.weight.zero_()  # it ends at once: the longest answers take 2048
    found = measured(silent, config)
    assert {record.suite for record in found} == {f"benchmark:{name}" for name in PAPER_BENCHMARKS}
    by_suite = {record.suite.removeprefix("benchmark:"): record for record in found}
    assert sum(record.suite == "benchmark:mmlu_pro" for record in found) == 14
    assert by_suite["mmlu_pro"].unanswered == by_suite["eq_bench"].unanswered == 1
    assert by_suite["humaneval_instruct"].value == 1.0
    assert set(by_suite["toxigen"].reasons) == {"gold 1"}
