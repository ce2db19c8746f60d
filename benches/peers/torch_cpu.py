"""Makes PyPI's CUDA build of torch importable where there is no CUDA, for its CPU half.

That build links to CUDA's libraries, gigabytes that nothing here calls. This writes, beside
torch's own libraries, empty stand-ins for those that are missing: each symbol returns an error.
For comparisons of loaders only; nothing of the product needs it.

usage: torch_cpu.py SITE-PACKAGES/torch/lib      needs readelf, nm and cc
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

# What CUDA's functions are called; other unversioned names belong to the C++ runtime or Python.
PREFIXES = ("cu", "nccl", "nv")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main():
    folder = pathlib.Path(sys.argv[1])
    libraries = [path for path in folder.glob("*.so*") if not path.is_symlink()]
    present = {path.name for path in folder.glob("*.so*")}
    system = {line.split()[0] for line in output("/sbin/ldconfig", "-p").splitlines()[1:] if line}

    needed, version_owner, wanted = set(), {}, set()
    for library in libraries:
        needed.update(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", library)))
        owner = None
        for line in output("readelf", "-VW", library).splitlines():
            if found := re.search(r"Version: 1\s+File: (\S+)", line):
                owner = found[1]
            elif owner and (found := re.search(r"Name: (\S+)\s+Flags: \S+\s+Version:", line)):
                version_owner[found[1]] = owner
        for line in output("nm", "-D", "--with-symbol-versions", "-u", library).splitlines():
            kind, symbol = line.split()[-2:]
            if kind == "U":
                wanted.add(symbol)

    missing = sorted(needed - present - system)
    defined = set()
    for library in libraries:
        listed = output("nm", "-D", "--defined-only", library)
        defined.update(line.split()[-1].split("@")[0] for line in listed.splitlines())

    versioned = collections.defaultdict(lambda: collections.defaultdict(set))
    plain = set()
    for symbol in wanted:
        name, _, version = symbol.partition("@")
        version = version.lstrip("@")
        if version and version_owner.get(version) in missing:
            versioned[version_owner[version]][version].add(name)
        elif not version and name not in defined and name.startswith(PREFIXES):
            plain.add(name)

    for library in missing:
        build(folder / library, library, versioned[library], plain)
        print(f"stand-in for {library}")


def build(path, soname, by_version, plain):
    """One library: its versioned symbols, and all unversioned ones that nobody else has."""
    owned = set().union(*by_version.values()) if by_version else set()
    code = "".join(f"int {name}(void) {{ return 100; }}\n" for name in sorted(owned | plain))
    script = "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};\n"
        for version, names in sorted(by_version.items())
    )
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch, "stub.c")
        source.write_text(code or "int stand_in;\n")
        command = ["cc", "-w", "-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{soname}"]
        if script:
            versions = pathlib.Path(scratch, "versions")
            versions.write_text(script)
            command.append(f"-Wl,--version-script={versions}")
        subprocess.run([*command, "-o", path, source], check=True)


main()
