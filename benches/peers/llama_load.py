"""llama.cpp through xllamacpp: model and smallest context.  usage: llama_load.py MODE SOURCE

MODE: mmap (lazy: pages come when they are used), read, direct
"""

import os
import sys

import xllamacpp

from common import measured

MODES = {
    "mmap": xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_MMAP,
    "read": xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE,
    "direct": xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_DIRECT_IO,
}


def load():
    mode, source = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = source
    params.load_mode = MODES[mode]
    params.n_ctx = 64
    params.n_gpu_layers = 0
    params.warmup = False
    params.fit_params = False
    params.n_parallel = 1
    params.endpoint_slots = False
    server = xllamacpp.Server(params)
    return os.path.getsize(source), server


measured(load)
