"""Generates the Python side of the contract from its `.proto` files.

Messages, gRPC stubs and the type stubs of both are written beside the `.proto` files and committed, so that
an installed Kagzi never needs a compiler. `--check` writes nothing: it generates into a temporary folder and
fails with the names of the files that differ, are missing, or belong to a `.proto` that is gone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGE = Path("kagzi/protocol/v1")
OUTPUTS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


class ProtoError(Exception):
    """The contract could not be compiled; the message is the compiler's."""


def compile_protos(source: Path) -> dict[Path, bytes]:
    """Compile every `.proto` of the package under `source`; the result maps relative paths to contents."""
    protos = sorted((source / PACKAGE).glob("*.proto"))
    if not protos:
        message = f"no .proto file in {source / PACKAGE}"
        raise ProtoError(message)
    scripts = Path(sysconfig.get_path("scripts"))
    with tempfile.TemporaryDirectory(prefix="kagzi-proto-") as folder:
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={source}",
            f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
            f"--python_out={folder}",
            f"--grpc_python_out={folder}",
            f"--mypy_out=quiet:{folder}",
            f"--mypy_grpc_out=quiet:{folder}",
            *(str(proto) for proto in protos),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ProtoError(done.stderr.strip() or f"protoc ended with {done.returncode}")
        return read_generated(Path(folder))


def read_generated(source: Path) -> dict[Path, bytes]:
    """Read the generated files that stand under `source` now."""
    return {
        path.relative_to(source): path.read_bytes()
        for pattern in OUTPUTS
        for path in sorted((source / PACKAGE).glob(pattern))
    }


def differences(source: Path, fresh: dict[Path, bytes]) -> list[str]:
    """Name every file in which the committed code is not what the `.proto` files say."""
    standing = read_generated(source)
    found = []
    for path in sorted(fresh.keys() | standing.keys()):
        if path not in standing:
            found.append(f"{path} is missing")
        elif path not in fresh:
            found.append(f"{path} has no .proto any more")
        elif standing[path] != fresh[path]:
            found.append(f"{path} differs")
    return found


def write(source: Path, fresh: dict[Path, bytes]) -> None:
    """Make the generated files under `source` equal to `fresh`, leaving equal ones untouched."""
    standing = read_generated(source)
    for path in standing.keys() - fresh.keys():
        (source / path).unlink()
    for path, content in fresh.items():
        if standing.get(path) != content:
            (source / path).write_bytes(content)


def main() -> int:
    """Generate, or with `--check` compare; the answer is the exit code."""
    parser = argparse.ArgumentParser(description="Generate the Python side of the contract.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when not current")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the folder that holds the package kagzi")
    arguments = parser.parse_args()
    try:
        fresh = compile_protos(arguments.source)
    except ProtoError as error:
        print(error, file=sys.stderr)
        return 1
    changes = differences(arguments.source, fresh)
    if not arguments.check:
        write(arguments.source, fresh)
        print("\n".join(changes) or f"{len(fresh)} generated files were current")
        return 0
    if changes:
        print("Generated code is not current; run `make proto` and commit:", file=sys.stderr)
        print("\n".join(f"  {change}" for change in changes), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
