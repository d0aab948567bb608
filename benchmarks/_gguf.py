"""Writes a Llama of transformers as a file of llama.cpp, without a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

#: Parts of a layer: the name in transformers -> the name in llama.cpp.
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_llama(model: Any, path: Path, weights: str) -> None:
    """Write `model`, with matrices in the type `weights` (`f32`, `bf16`, `q8_0` or `q4_1`), and vectors in f32."""
    import gguf

    configuration = model.config
    heads, key_heads = configuration.num_attention_heads, configuration.num_key_value_heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(configuration.max_position_embeddings)
    writer.add_embedding_length(configuration.hidden_size)
    writer.add_block_count(configuration.num_hidden_layers)
    writer.add_feed_forward_length(configuration.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_layer_norm_rms_eps(configuration.rms_norm_eps)
    writer.add_rope_dimension_count(configuration.hidden_size // heads)
    writer.add_rope_freq_base(configuration.rope_parameters["rope_theta"])
    writer.add_vocab_size(configuration.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    type_ = gguf.GGMLQuantizationType[weights.upper()]

    def add(name: str, tensor: Tensor) -> None:
        values = tensor.detach().float().numpy()
        if values.ndim == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, type_), raw_dtype=type_)

    add("token_embd", model.model.embed_tokens.weight)
    add("output_norm", model.model.norm.weight)
    add("output", model.lm_head.weight)
    for number, layer in enumerate(model.model.layers):
        for part, name in _PARTS.items():
            weight = layer.get_submodule(part).weight
            if name in ("attn_q", "attn_k"):
                weight = _interleaved(weight, heads if name == "attn_q" else key_heads)
            add(f"blk.{number}.{name}", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(weight: Tensor, heads: int) -> Tensor:
    """The rows of a weight with both halves of each head in turns, as llama.cpp rotates them."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
