"""What all peers share: the measure around a load, and the one line that the comparison reads.

A peer script imports everything it needs first, then calls `measured(load)`. `load` brings a
whole model into memory, last byte included, and returns (bytes, what keeps it alive).

The line: seconds, bytes, cpu_user, cpu_sys (the load alone, imports and start-up excluded, which
favours the peer), peak_rss, base_rss (bytes; the difference is what the load took).
"""

import gc
import json
import os
import pathlib
import resource
import time


def files_of(source):
    """The model files of a folder, in order, or the file itself."""
    path = pathlib.Path(source)
    if path.is_dir():
        return [str(file) for file in sorted(path.glob("*.safetensors"))]
    return [str(path)]


def resident():
    """Resident bytes now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def touch(array):
    """Reads one byte of every page: `array` is a flat numpy array of bytes."""
    return int(array[:: resource.getpagesize()].max()) if array.size else 0


def measured(load, seconds_of=None):
    """Runs `load`, prints the line, ends the process.

    seconds_of: where the package does more than loading and says when: the seconds of the load.
    """
    gc.disable()
    base = resident()
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    size, alive = load()
    seconds = time.perf_counter() - started
    if seconds_of:
        seconds = seconds_of(seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "bytes": size,
                "cpu_user": after.ru_utime - before.ru_utime,
                "cpu_sys": after.ru_stime - before.ru_stime,
                "peak_rss": after.ru_maxrss * 1024,
                "base_rss": base,
            }
        ),
        flush=True,
    )
    # Out at once: a loader's own threads may take their time to end, or never do.
    os._exit(0 if alive is not None else 1)
