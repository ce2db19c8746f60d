"""safetensors, the way most programs read it.  usage: safetensors_load.py MODE SOURCE

mmap: views of the mapped file, one byte of every page touched
clone: every view copied into memory of its own
pread: the package's other backend, which reads into memory of its own
"""

import sys

import torch
from safetensors import safe_open

from common import files_of, measured, touch


def load():
    mode, source = sys.argv[1:]
    backend = "pread" if mode == "pread" else "mmap"
    tensors, opened, size = [], [], 0
    for path in files_of(source):
        file = safe_open(path, framework="pt", backend=backend).__enter__()
        opened.append(file)
        for name in file.keys():
            tensor = file.get_tensor(name)
            if mode == "clone":
                tensor = tensor.clone()
            elif mode == "mmap":
                flat = tensor.reshape(-1)
                touch(flat.view(torch.uint8).numpy() if flat.numel() else flat.numpy())
            size += tensor.numel() * tensor.element_size()
            tensors.append(tensor)
    return size, (tensors, opened)


measured(load)
