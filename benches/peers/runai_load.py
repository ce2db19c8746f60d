"""Run:ai's model streamer, its defaults: io_uring direct where it can.  usage: runai_load.py SOURCE"""

import sys

from runai_model_streamer import SafetensorsStreamer

from common import files_of, measured


def load():
    tensors, size = [], 0
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(files_of(sys.argv[1]))
        for _, tensor in streamer.get_tensors():
            size += tensor.numel() * tensor.element_size()
            tensors.append(tensor)
    return size, tensors


measured(load)
