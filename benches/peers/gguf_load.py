"""The gguf package: every tensor copied out of its mapping.  usage: gguf_load.py SOURCE"""

import sys

import numpy
from gguf import GGUFReader

from common import measured


def load():
    reader = GGUFReader(sys.argv[1])
    tensors = [numpy.array(tensor.data) for tensor in reader.tensors]
    return sum(tensor.nbytes for tensor in tensors), (reader, tensors)


measured(load)
