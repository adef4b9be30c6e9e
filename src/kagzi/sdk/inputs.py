"""Inputs: what names a thing that came from outside, to producers, clients and servers alike."""

from __future__ import annotations

from dataclasses import dataclass

from kagzi.protocol.v1.automation_pb2 import InputKey
from kagzi.sdk import option


@dataclass(frozen=True, slots=True)
class Input:
    """Something outside: where it is from, what it is there, and its id there."""

    source: str
    type: str
    id: str

    def __str__(self) -> str:
        return f"{self.source}/{self.type}/{self.id}"

    def key(self) -> InputKey:
        """As it travels. ConfigError names what is no text."""
        for part in ("source", "type", "id"):
            option.text(getattr(self, part), f"the {part} of an input")
        return InputKey(source=self.source, type=self.type, id=self.id)


def input_of(key: InputKey) -> Input:
    """One of the wire."""
    return Input(key.source, key.type, key.id)
