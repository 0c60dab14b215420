"""Named random streams: the only source of randomness in Fractionate.

A stream is a pure function of a seed and a path of names, so a run that is interrupted needs no
generator state to continue: `stream(42, "rollout", 17)` gives the same numbers in any process, in
any order, on any machine. Two purposes never share a stream.
"""

import contextlib
import hashlib
import sys
from collections.abc import Iterator

import numpy as np

Name = str | int


def derive_seed(seed: int, *names: Name) -> int:
    """A 63-bit seed for what `names` spells, e.g. `derive_seed(42, "rollout", step)`."""
    path = "\x1f".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") >> 1


def stream(seed: int, *names: Name) -> np.random.Generator:
    """A fresh numpy generator for the purpose that `names` spells."""
    return np.random.default_rng(derive_seed(seed, *names))  # noqa: TID251 - seeded by name


@contextlib.contextmanager
def borrow_global(seed: int, name: str) -> Iterator[None]:
    """Seed the global generators for third-party code, and put them back afterwards.

    Model initialisation and third-party trainers draw from the global state of `random`, numpy and
    torch; this is the one door to it. Torch is touched only where it is already imported.
    """
    import random  # noqa: TID251 - the one place that may touch the global state

    torch = sys.modules.get("torch")
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch_state = torch.get_rng_state() if torch else None
    derived = derive_seed(seed, "global", name)
    random.seed(derived)
    np.random.seed(derived % 2**32)  # noqa: NPY002, TID251
    if torch:
        torch.manual_seed(derived)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        if torch and torch_state is not None:
            torch.set_rng_state(torch_state)
