"""Writes a llama model of random F16 weights (TinyLlama's shape, 2.1 GB) that llama.cpp loads.

usage: make_gguf.py TARGET
"""

import pathlib
import sys

import numpy
from gguf import GGUFWriter

LAYERS, HIDDEN, INTER, HEADS, KV_HEADS, VOCAB = 22, 2048, 5632, 32, 4, 32000


def main():
    target = pathlib.Path(sys.argv[1])
    partial = target.with_suffix(".partial")
    noise = numpy.random.default_rng(1).standard_normal(1 << 20).astype(numpy.float16) * 0.02
    writer = GGUFWriter(partial, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(2048)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")  # no words: making a vocabulary is not loading

    def add(name, *shape):
        writer.add_tensor(name, numpy.resize(noise, shape))

    def ones(name):
        writer.add_tensor(name, numpy.ones(HIDDEN, numpy.float32))

    kv = HIDDEN // HEADS * KV_HEADS
    add("token_embd.weight", VOCAB, HIDDEN)
    for layer in range(LAYERS):
        name = f"blk.{layer}"
        ones(f"{name}.attn_norm.weight")
        add(f"{name}.attn_q.weight", HIDDEN, HIDDEN)
        add(f"{name}.attn_k.weight", kv, HIDDEN)
        add(f"{name}.attn_v.weight", kv, HIDDEN)
        add(f"{name}.attn_output.weight", HIDDEN, HIDDEN)
        ones(f"{name}.ffn_norm.weight")
        add(f"{name}.ffn_gate.weight", INTER, HIDDEN)
        add(f"{name}.ffn_up.weight", INTER, HIDDEN)
        add(f"{name}.ffn_down.weight", HIDDEN, INTER)
    ones("output_norm.weight")
    add("output.weight", VOCAB, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


main()
