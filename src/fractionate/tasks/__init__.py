"""Tasks: problems to pose, completions to grade, demonstrations to learn from."""
