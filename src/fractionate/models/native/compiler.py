"""The C kernel: found out about without torch, compiled once per process, reached by ctypes.

It is compiled on first use into a temporary folder that is removed at once, so there is no cache
that could go stale and nothing is left behind.
"""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, ClassVar, Final

_SOURCES: Final = tuple(
    str(Path(__file__).with_name(name)) for name in ("kernel.c", "draw.c", "layer.c")
)
_COMPILERS: Final = ("cc", "gcc", "clang")
_FLAGS: Final = ("-O3", "-march=native", "-shared", "-fPIC", "-Wno-psabi")


class KernelError(ValueError):
    """The native kernel cannot be had here; the message says what to do."""


class Matrix(ctypes.Structure):
    """A packed matrix: see `kernel.c`."""

    _fields_: ClassVar[Sequence[Any]] = [
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int32),
        ("inputs", c_int32),
    ]


class Layer(ctypes.Structure):
    """One layer: see `kernel.c`."""

    _fields_: ClassVar[Sequence[Any]] = [
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("qkv", Matrix),
        ("output", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
    ]


class Model(ctypes.Structure):
    """A model: see `kernel.c`."""

    _fields_: ClassVar[Sequence[Any]] = [
        ("layers", POINTER(Layer)),
        ("embedding", c_void_p),
        ("norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("head", Matrix),
        ("layer_count", c_int32),
        ("hidden", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("inner", c_int32),
        ("bfloat16", c_int32),
        ("epsilon", c_float),
    ]


class Cache(ctypes.Structure):
    """Keys and values in pages: see `kernel.c`."""

    _fields_: ClassVar[Sequence[Any]] = [
        ("keys", c_void_p),
        ("values", c_void_p),
        ("table", c_void_p),
        ("pages", c_int32),
        ("pages_per_slot", c_int32),
    ]


_P, _I, _L = c_void_p, c_int32, c_int64
_FUNCTIONS: Final[dict[str, tuple[Sequence[Any], Any]]] = {
    "use_large_pages": ((_P, _L), None),
    "panel_width": ((), _I),
    "page_length": ((), _I),
    "pack": ((_P, _P, _I, _I, _I, _I, _I), None),
    "space_needed": ((POINTER(Model), _L), _L),
    "forward": ((POINTER(Model), POINTER(Cache), _I, _P, _P, _P, _P, _P, _P), None),
    "logits_of": ((POINTER(Model), _I, _P, _P, _P), None),
    "copy_slot": ((POINTER(Model), POINTER(Cache), _I, _I, _I), None),
    "norm_rows": ((_L, _I, _P, _P, c_float, _P), None),
    "norm_rows_backward": ((_L, _I, _P, _P, _P, c_float, _P, _P, _P), None),
    "gate_values": ((_L, _P, _P, _P), None),
    "gate_values_backward": ((_L, _P, _P, _P, _P, _P, _P), None),
    "rotate_rows": ((_L, _I, _I, _P, _P, _P, c_float), None),
    "attention_space": ((_L, _I), _L),
    "attend_rows": ((_L, _P, _I, _I, _I, *(5 * (_P,))), None),
    "attend_rows_backward": ((_L, _P, _I, _I, _I, *(8 * (_P,))), None),
    "draw": ((_I, _L, _P, c_float, _P, _P, _P, _P, _P, _P), None),
}


def find_compiler() -> str | None:
    """A C compiler on the PATH, if there is one."""
    return next((path for name in _COMPILERS if (path := shutil.which(name))), None)


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled kernel.

    Raises:
        KernelError: There is no compiler, or it fails.
    """
    compiler = find_compiler()
    if compiler is None:
        raise KernelError(
            "the native kernel needs a C compiler (cc, gcc or clang), and there is none here. "
            "Install one, or set kernel: torch and plan again"
        )
    with tempfile.TemporaryDirectory(prefix="fractionate-kernel-") as folder:
        target = Path(folder) / "kernel.so"
        command = [compiler, *_FLAGS, *_SOURCES, "-o", str(target), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip() or "no message").split("\n")[0]
            raise KernelError(
                f"{compiler} could not compile the native kernel ({reason}). Set kernel: torch"
            )
        loaded = ctypes.CDLL(str(target))
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded
