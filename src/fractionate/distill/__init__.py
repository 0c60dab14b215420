"""One controlled distillation: rollout, score, objective, update, record."""
