"""GGUF headers: read without the weights, refused when damaged."""

import struct

import pytest

from fractionate.study.dimensions import dimensions_of
from fractionate.study.gguf_header import read_gguf_header


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def entry(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def number(key, value):
    return entry(f"llama.{key}", 4, struct.pack("<I", value))


SIZES = {
    "embedding_length": 576,
    "block_count": 30,
    "attention.head_count": 9,
    "attention.head_count_kv": 3,
    "feed_forward_length": 1536,
}


def header(*, tensors=("token_embd.weight",), version=3, tokens=49_152):
    words = struct.pack("<IQ", 8, tokens) + text("ab") * tokens
    floats = struct.pack("<IQ", 6, 3) + struct.pack("<3f", 1, 2, 3)
    entries = [
        entry("general.architecture", 8, text("llama")),
        *(number(key, value) for key, value in SIZES.items()),
        entry("tokenizer.ggml.tokens", 9, words),
        entry("tokenizer.ggml.scores", 9, floats),
        entry("some.flag", 7, struct.pack("<?", True)),
    ]
    infos = [text(name) + struct.pack("<IQQIQ", 2, 5, 7, 0, 0) for name in tensors]
    head = struct.pack("<IQQ", version, len(infos), len(entries))
    return b"GGUF" + head + b"".join(entries) + b"".join(infos) + b"weights"


def test_sizes_come_from_the_header(tmp_path):
    """The sizes are those of SmolLM2-135M, whose parameter count is public."""
    path = tmp_path / "model.gguf"
    path.write_bytes(header())
    sizes = dimensions_of(str(path))
    assert sizes is not None
    assert sizes.tied
    assert sizes.parameters == 134_515_008


def test_a_head_of_its_own_is_a_tensor_of_its_own(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(header(tensors=["token_embd.weight", "output.weight", "blk.0.attn_q.bias"]))
    sizes = dimensions_of(str(path))
    assert sizes is not None
    assert not sizes.tied
    assert sizes.qkv_bias


def test_arrays_are_skipped_and_counted(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(header(tokens=5))
    read = read_gguf_header(path)
    assert read.lengths == {"tokenizer.ggml.tokens": 5, "tokenizer.ggml.scores": 3}
    assert read.values["some.flag"] is True
    assert read.tensors == {"token_embd.weight"}


@pytest.mark.parametrize(
    "content", [b"", b"GGML", b"GGUF", header()[:200], header(version=1), header(tokens=5)[:-30]]
)
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.gguf cannot be read as a GGUF file"):
        read_gguf_header(path)


@pytest.mark.parametrize("length", [2**40, 2**63, 2**64 - 1])
def test_a_length_beyond_the_file_takes_no_memory(tmp_path, length):
    path = tmp_path / "model.gguf"
    array = struct.pack("<IQ", 10, length)
    head = struct.pack("<IQQ", 3, 0, 1)
    path.write_bytes(b"GGUF" + head + entry("some.array", 9, array))
    with pytest.raises(ValueError, match="ends too early"):
        read_gguf_header(path)
