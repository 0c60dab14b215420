"""Tiny models and a tokenizer, made on the spot."""

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from fractionate.rng import borrow_global

VOCABULARY = ["<pad>", "<bos>", "<eos>", *[str(i) for i in range(29)]]
TEMPLATE = "{{ bos_token }}{% for m in messages %} {{ m['content'] }}{% endfor %}"


def tokenizer() -> PreTrainedTokenizerFast:
    """Whole words of a 32-token vocabulary, with a chat template."""
    core = Tokenizer(WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<pad>"))
    core.pre_tokenizer = WhitespaceSplit()
    result = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    result.chat_template = TEMPLATE
    return result


def llama(seed: int = 0, *, width: int = 32, layers: int = 2, **changes) -> LlamaForCausalLM:
    """A random Llama with grouped-query attention."""
    config = LlamaConfig(
        **{
            "vocab_size": len(VOCABULARY),
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "tie_word_embeddings": False,
            **changes,
        }
    )
    with borrow_global(seed, "tiny model"):
        return LlamaForCausalLM(config).eval()


def save_pair(folder: Path) -> tuple[Path, Path]:
    """A tiny student and a wider tiny teacher as Hugging Face folders."""
    paths = (folder / "student", folder / "teacher")
    for path, model in zip(paths, (llama(1), llama(2, width=64)), strict=True):
        model.save_pretrained(path)
        tokenizer().save_pretrained(path)
    return paths
