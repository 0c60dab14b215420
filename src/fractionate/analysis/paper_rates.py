"""Learning rates of the published checkpoints in table 6 of arXiv 2609.35259."""

PUBLISHED_RATES: tuple[tuple[str, float | None], ...] = (
    ("SFT", 5e-6),
    ("SFT", 2e-6),
    ("SFT", 2e-5),
    ("DPO", 5e-7),
    ("DPO", 5e-7),
    ("GRPO", 1e-6),
    ("ORPO", 8e-6),
    ("KTO", 5e-7),
    ("KTO", 5e-7),
    ("PPO", 1e-6),
    ("SimPO", 1e-6),
    ("PRIME", 5e-7),
    ("RL-Zero", None),
)
"""Stage and peak rate, as printed; none was not disclosed. The second DPO rate (70B) is printed as
5e-7, its developers ran 2e-7: the median stays."""
