"""The generator of the contract's code notices every way in which committed code can be out of date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import proto

NOTE = 'syntax = "proto3";\npackage kagzi.v1;\nmessage Note { string text = 1; }\n'
PAD = (
    'syntax = "proto3";\npackage kagzi.v1;\nimport "kagzi/protocol/v1/note.proto";\n'
    "service PadService { rpc Write(Note) returns (Note); }\n"
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source folder with a contract of two files whose generated code is current."""
    folder = tmp_path / proto.PACKAGE
    folder.mkdir(parents=True)
    (folder / "note.proto").write_text(NOTE)
    (folder / "pad.proto").write_text(PAD)
    proto.write(tmp_path, proto.compile_protos(tmp_path))
    return tmp_path


def test_every_proto_gets_messages_stubs_and_the_types_of_both(source: Path) -> None:
    made = {path.name for path in (source / proto.PACKAGE).iterdir()} - {"note.proto", "pad.proto"}
    endings = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
    assert made == {name + ending for name in ("note", "pad") for ending in endings}


def test_generated_code_imports_by_the_package_name(source: Path) -> None:
    assert "from kagzi.protocol.v1 import note_pb2" in (source / proto.PACKAGE / "pad_pb2.py").read_text()


def test_every_kind_of_difference_is_named(source: Path) -> None:
    folder = source / proto.PACKAGE
    assert proto.differences(source, proto.compile_protos(source)) == []
    (folder / "note.proto").write_text(NOTE.replace("text = 1", "words = 1"))
    (folder / "pad_pb2.pyi").unlink()
    (folder / "gone_pb2.py").write_text("")
    fresh = proto.compile_protos(source)
    assert proto.differences(source, fresh) == [
        f"{proto.PACKAGE}/gone_pb2.py has no .proto any more",
        f"{proto.PACKAGE}/note_pb2.py differs",
        f"{proto.PACKAGE}/note_pb2.pyi differs",
        f"{proto.PACKAGE}/pad_pb2.pyi is missing",
    ]
    proto.write(source, fresh)
    assert proto.differences(source, fresh) == []


def test_a_proto_with_a_mistake_is_refused_with_the_words_of_the_compiler(source: Path) -> None:
    (source / proto.PACKAGE / "note.proto").write_text(NOTE.replace("string", "strin"))
    with pytest.raises(proto.ProtoError, match="strin"):
        proto.compile_protos(source)


def test_a_folder_without_a_contract_is_refused(tmp_path: Path) -> None:
    with pytest.raises(proto.ProtoError, match=r"no \.proto file"):
        proto.compile_protos(tmp_path)
