"""Like the harness's own code tasks: the metric is loaded by name when the task is."""

import evaluate

METRIC = evaluate.load("code_eval")


def pass_at_k(references, predictions, k):
    return METRIC.compute(references=references, predictions=predictions, k=k)[0]


def build_predictions(resps, docs):
    """The file's own programs, whatever the model wrote."""
    return [[doc["program"] for _ in row] for row, doc in zip(resps, docs, strict=True)]
