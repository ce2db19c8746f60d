"""Compares a model with what ubcp made of it, through the formats' own Python packages.

usage: interop.py ORIGINAL RESULT     ORIGINAL: a file, or a folder with safetensors shards

Prints one line and exits 0 when every tensor is equal in name, type, shape and bytes.
"""

import pathlib
import sys

import numpy


def fail(message):
    sys.exit(f"interop: {message}")


def safetensors_of(path):
    """Every tensor of a file as (dtype, shape, bytes), read by the safetensors package."""
    import safetensors

    return {
        name: (tensor["dtype"], tuple(tensor["shape"]), bytes(tensor["data"]))
        for name, tensor in safetensors.deserialize(path.read_bytes())
    }


def check_mapped(result, wanted):
    """The usual way in: safe_open maps the file and makes numpy arrays of it."""
    from safetensors import safe_open

    seen = 0
    with safe_open(result, framework="np") as opened:
        if sorted(opened.keys()) != sorted(wanted):
            fail("safe_open lists other names")
        for name in opened.keys():
            part = opened.get_slice(name)
            dtype, shape, data = wanted[name]
            if (part.get_dtype(), tuple(part.get_shape())) != (dtype, shape):
                fail(f"{name}: {part.get_dtype()} {part.get_shape()}, not {dtype} {shape}")
            try:
                array = opened.get_tensor(name)
            except (AttributeError, TypeError, KeyError, ValueError):
                continue  # numpy has no such type; its bytes are compared above
            if array.tobytes() != data:
                fail(f"{name}: other bytes through safe_open")
            seen += 1
    return seen


def compare_safetensors(original, result):
    files = sorted(original.glob("*.safetensors")) if original.is_dir() else [original]
    wanted = {}
    for path in files:
        wanted.update(safetensors_of(path))
    found = safetensors_of(result)
    if sorted(wanted) != sorted(found):
        fail(f"other names: {sorted(set(wanted) ^ set(found))[:5]}")
    for name, tensor in wanted.items():
        if tensor[:2] != found[name][:2]:
            fail(f"{name}: {found[name][:2]}, not {tensor[:2]}")
        if tensor[2] != found[name][2]:
            fail(f"{name}: other bytes")
    seen = check_mapped(result, wanted)
    size = sum(len(tensor[2]) for tensor in wanted.values())
    print(f"{len(wanted)} tensors, {size} bytes equal; {seen} also through safe_open")


def compare_gguf(original, result):
    from gguf import GGUFReader

    first, second = GGUFReader(original), GGUFReader(result)
    for key in first.fields:
        if key not in second.fields:
            fail(f"metadata {key} is missing")
        mine, other = first.fields[key], second.fields[key]
        if key.startswith("GGUF."):
            continue  # counts and version, compared below by what they count
        if mine.types != other.types or mine.contents() != other.contents():
            fail(f"metadata {key} differs")
    wanted = {tensor.name: tensor for tensor in first.tensors}
    found = {tensor.name: tensor for tensor in second.tensors}
    if sorted(wanted) != sorted(found):
        fail("other tensor names")
    for name, tensor in wanted.items():
        other = found[name]
        same_kind = tensor.tensor_type == other.tensor_type
        if not same_kind or list(tensor.shape) != list(other.shape):
            fail(f"{name}: other type or shape")
        if not numpy.array_equal(
            tensor.data.view(numpy.uint8).ravel(), other.data.view(numpy.uint8).ravel()
        ):
            fail(f"{name}: other bytes")
    size = sum(int(tensor.n_bytes) for tensor in first.tensors)
    print(f"{len(wanted)} tensors, {size} bytes, {len(first.fields)} metadata fields equal")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    original, result = map(pathlib.Path, sys.argv[1:])
    with open(result, "rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    (compare_gguf if is_gguf else compare_safetensors)(original, result)


main()
