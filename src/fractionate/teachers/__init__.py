"""Making teachers and student bases: the pre-training of the sandbox."""
