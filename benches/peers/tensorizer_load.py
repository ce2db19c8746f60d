"""tensorizer, from its own format.

usage: tensorizer_load.py convert SOURCE TARGET    writes the model in tensorizer's format
       tensorizer_load.py READERS TARGET           loads it with that many readers
"""

import pathlib
import sys

import torch  # noqa: F401
from tensorizer import TensorDeserializer, TensorSerializer

from common import files_of, measured


def convert(source, target):
    from safetensors.torch import load_file

    state = {}
    for path in files_of(source):
        state.update(load_file(path))
    partial = pathlib.Path(target + ".partial")
    serializer = TensorSerializer(str(partial))
    serializer.write_state_dict(state)
    serializer.close()
    partial.rename(target)


def load():
    readers, target = int(sys.argv[1]), sys.argv[2]
    tensors = TensorDeserializer(target, device="cpu", num_readers=readers, lazy_load=False)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return size, tensors


if sys.argv[1] == "convert":
    convert(*sys.argv[2:])
else:
    measured(load)
