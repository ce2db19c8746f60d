"""llama.cpp through xllamacpp: model and smallest context.  usage: llama_load.py MODE SOURCE

MODE: mmap (lazy: pages come when they are used), read, direct

The package only has a server, which also starts threads and tries a decode. So the seconds are
those between two lines of llama.cpp's log, around the load; CPU and memory are the whole's.
"""

import os
import re
import sys
import tempfile

import xllamacpp

from common import measured

MODES = {
    "mmap": xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_MMAP,
    "read": xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE,
    "direct": xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_DIRECT_IO,
}


LOG = tempfile.TemporaryFile()


def stamp(log, words):
    """Seconds at the log line with these words: `M.SS.mmm.uuu` before it."""
    found = re.search(rf"^(\d+)\.(\d+)\.(\d+)\.(\d+) .*{words}", log, re.MULTILINE)
    if not found:
        return None
    minutes, seconds, milli, micro = map(int, found.groups())
    return minutes * 60 + seconds + milli / 1e3 + micro / 1e6


def seconds_of(whole):
    LOG.seek(0)
    log = LOG.read().decode(errors="replace")
    first, last = stamp(log, "loading model '"), stamp(log, "threadpool init")
    return whole if first is None or last is None else last - first


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


os.dup2(LOG.fileno(), 2)
measured(load, seconds_of)
