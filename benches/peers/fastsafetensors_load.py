"""fastsafetensors into host memory, 16 threads (its default).  usage: fastsafetensors_load.py SOURCE"""

import sys

import torch  # noqa: F401  (its framework layer wants it imported)
from fastsafetensors import SafeTensorsFileLoader

from common import files_of, measured


def load():
    loader = SafeTensorsFileLoader(None, "cpu", nogds=True, set_numa=False)
    loader.add_filenames({0: files_of(sys.argv[1])})
    buffers = loader.copy_files_to_device()
    tensors = [buffers.get_tensor(name) for name in loader.get_keys()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return size, (loader, buffers, tensors)


measured(load)
