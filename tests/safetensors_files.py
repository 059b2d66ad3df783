"""Files in the safetensors format that readers treat in one way: what the service, its client and its commands have in
common. `SOUND` are read, `UNSOUND` refused; each has a tensor `x` of two items of float32, or would have.
"""

from __future__ import annotations

from typing import Final

_X: Final = '"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


def file(header: str | bytes, items: int = 8) -> bytes:
    """A file with this header and as many bytes of items."""
    text = header if isinstance(header, bytes) else header.encode()
    return len(text).to_bytes(8, "little") + text + bytes(items)


def with_member(member: str) -> bytes:
    """A file whose tensor has one more member."""
    return file(f"{{{_X[:-1]},{member}}}}}")


SOUND: Final = {
    "plain": file(f"{{{_X}}}"),
    "metadata null": file(f'{{"__metadata__":null,{_X}}}'),
    "metadata null behind": file(f'{{{_X}, "__metadata__" : null }}'),
    "metadata empty": file(f'{{"__metadata__":{{}},{_X}}}'),
    "metadata of a name's kind": file(f'{{"__metadata__":{{"dtype":"F32","}}":"{{"}},{_X}}}'),
    "unknown number": with_member('"extra":1'),
    "unknown null": with_member('"extra":null'),
    "unknown text with brackets": with_member('"extra":"}]{\\"[:"'),
    "unknown list of objects": with_member('"extra":[{"dtype":"I8","shape":[9]},[],{}]'),
    "unknown first": file('{"x":{"a":{"b":"}"},"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
    "unknown nested deep": with_member(f'"extra":{"[" * 125}{"]" * 125}'),
    "unknown long": with_member(f'"extra":"{"x" * 50_000}"'),
    "members in another order": file('{"x":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}}'),
    "padded with spaces": file(f"{{{_X}}}" + " " * 99),
    "padded with other space": file(f"{{{_X}}}\n\t\r "),
}
UNSOUND: Final = {
    "metadata a list": file(f'{{"__metadata__":[],{_X}}}'),
    "metadata a text": file(f'{{"__metadata__":"",{_X}}}'),
    "metadata nullish": file(f'{{"__metadata__":nullx,{_X}}}'),
    "metadata with a number": file(f'{{"__metadata__":{{"a":1}},{_X}}}'),
    "metadata with null": file(f'{{"__metadata__":{{"a":null}},{_X}}}'),
    "metadata twice": file(f'{{"__metadata__":null,"__metadata__":{{}},{_X}}}'),
    "member twice": file('{"x":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
    "unknown NaN": with_member('"extra":NaN'),
    "unknown not closed": with_member('"extra":['),
    "unknown with a comma at the end": with_member('"extra":[1,]'),
    "unknown of other bytes": file(b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"e":"\xff"}}'),
    "member missing": file('{"x":{"dtype":"F32","shape":[2],"extra":[0,8]}}'),
    "offsets overlap": file(f'{{{_X},"y":{{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}}}', 12),
    "hole": file(f'{{{_X},"y":{{"dtype":"F32","shape":[2],"data_offsets":[12,20]}}}}', 20),
    "hole at the start": file('{"x":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}', 12),
    "empty tensor within another": file(f'{{{_X},"y":{{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}}}'),
    "bytes left over": file(f"{{{_X}}}", 9),
    "bytes missing": file(f"{{{_X}}}", 7),
    "shape of other items": file('{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}'),
    "type in lower case": file('{"x":{"dtype":"f32","shape":[2],"data_offsets":[0,8]}}'),
    "size a fraction": file('{"x":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}'),
    "size a text": file('{"x":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}}'),
    "size true": file('{"x":{"dtype":"F32","shape":[2,true],"data_offsets":[0,8]}}'),
    "size negative": file('{"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}'),
    "offset a fraction": file('{"x":{"dtype":"F32","shape":[2],"data_offsets":[0.0,8]}}'),
    "three offsets": file('{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}}'),
    "padded with zeros": file(f"{{{_X}}}\0\0"),
    "followed by other text": file(f"{{{_X}}} x"),
    "byte order mark": file("\ufeff{" + _X + "}"),
    "another encoding": file(f"{{{_X}}}".encode("utf-16-le")),
}
FORBIDDEN: Final = {
    "tensor twice": file(f"{{{_X},{_X}}}"),
    "metadata with a name twice": file(f'{{"__metadata__":{{"a":"1","a":"2"}},{_X}}}'),
    "unknown twice": with_member('"extra":1,"extra":2'),
    "unknown with a name twice": with_member('"extra":{"a":1,"a":2}'),
    "space before the brace": file(f" {{{_X}}}"),
    "a list for an object": file('{"x":["F32",[2],[0,8]]}'),
}
"""What the text of the format forbids, and its own library reads nevertheless."""
