import importlib.util

import pytest
from worlds import RESOLVED

from fractionate.rlvr.packages import TrainerUnavailableError, check_trainers


def test_a_machine_that_has_all_passes():
    check_trainers(RESOLVED, device="cpu", field="rlvr")


def test_missing_trainers_are_named_with_the_way_to_get_them(monkeypatch):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("trl", "peft") else object()
    )
    with pytest.raises(
        TrainerUnavailableError, match=r"of which trl, peft cannot be found"
    ) as told:
        check_trainers(RESOLVED, device="cpu", field="rlvr")
    assert "pip install 'fractionate[train]'" in str(told.value)


def test_eight_bit_moments_need_bitsandbytes(monkeypatch):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else object()
    )
    small = RESOLVED.model_copy(update={"optimizer": "adamw_8bit"})
    with pytest.raises(TrainerUnavailableError, match=r"optimizer 'adamw_8bit' need"):
        check_trainers(small, device="cuda", field="rlvr")
