import numpy as np
import pytest
from planted import RATE, ROLLOUT, planted, scored, study

from fractionate.analysis.rounding import rounding
from fractionate.analysis.runs import Runs, gather
from fractionate.analysis.teacher_table import teacher_table
from fractionate.analysis.tradeoff import drift_fit, tradeoff
from fractionate.records import EvalRecord


def test_sparsity_beside_its_null(rate_runs: Runs):
    found = rounding(rate_runs)
    assert found is not None
    assert len(found.cells.rows) == 8
    observed, predicted = (float(found.cells.rows[0].cells[i]) for i in (1, 2))
    assert predicted == pytest.approx(0.9 * observed, abs=0.2)
    assert "of the variance of sparsity" in found.sentence
    assert found.explanation is not None
    assert found.explanation.df_extra == 2


def test_a_rollout_effect_beyond_rounding_is_named():
    told = rounding(gather(planted(sparsity={ROLLOUT: 0.5}, seeds=(42, 43, 44), items=5, steps=2)))
    null = rounding(gather(planted(seeds=(42, 43, 44), items=5, steps=2, draw=1)))
    for found, reading in ((told, "explains something"), (null, "cannot be told")):
        assert found is not None
        assert found.effects is not None
        assert found.effects.rows[0].cells[0].startswith("rollout policy, student − teacher")
        assert reading in found.effects.rows[0].cells[3]


def test_without_sparsity_there_is_no_view():
    runs = gather([scored({RATE: rate}, seed, [1, 0]) for rate in "12" for seed in (1, 2)])
    assert rounding(runs) is None
    assert tradeoff(runs) is None
    assert drift_fit(runs) is None


def test_gain_and_drop_with_the_front(rate_runs: Runs):
    found = tradeoff(rate_runs)
    assert found is not None
    gains = [
        float(row.cells[1].replace("\N{MINUS SIGN}", "-").split()[0]) for row in found.pairs.rows
    ]
    assert gains == sorted(gains)
    front = [row.cells[0] for row in found.pairs.rows if row.mark == "named"]
    assert front
    assert all("0.0005" in label for label in front)
    assert "At matched accuracy" in found.matched


def test_the_drift_predicts_forgetting():
    cells = planted(forgetting={RATE: 0.3}, seeds=(42, 43, 44), items=5, steps=2)
    found = drift_fit(gather(cells, study=study()))
    assert found is not None
    assert found.fit.n == 24
    # the planted drift has nothing to do with forgetting, the rate has everything
    assert found.fit.r2 is not None
    assert found.fit.r2 < 0.4
    assert any("the learning rate adds to it" in sentence for sentence in found.sentences)


def test_the_teacher_table():
    lengths = (10, 20, 30, 40)
    records = [
        EvalRecord("accuracy", f"i{i}", 0.5, 1, right, right, 0, 0, tokens)
        for i, (tokens, right) in enumerate(zip(lengths, (1, 1, 1, 0), strict=True))
    ]
    table = teacher_table({"sandbox": records, "none": ()})
    assert table is not None
    (row,) = table.rows
    assert row.cells[:3] == ("sandbox", "accuracy, T 0.5", "75.0")
    assert row.cells[5] == f"25.0 ± {np.std(lengths, ddof=1):.1f}"
    assert teacher_table({"none": ()}) is None
