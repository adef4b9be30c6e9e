"""How Python values become JSON and come back equal and of the same type, decided once per annotation.

A shape is the compiled form of an annotation. `compiler` makes them; `payload`, outside this package, runs
them. What JSON can say alone is written plainly. Where the annotation leaves more than one reading (two
dataclasses in a union, `str | UUID`, a tuple under `Any`), and only there, the value carries a tag:
`{"$kagzi": "Card", ...fields}` for classes with fields and `{"$kagzi": "UUID", "value": "..."}` for
everything else.
"""
