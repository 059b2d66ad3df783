"""Random JSON requests, valid, wrong and broken, from a seed."""

from __future__ import annotations

import base64
import json
from math import prod
from random import Random

from app.tensors.dtypes import DTYPES

NUMBERS = [
    "0", "1", "-1", "255", "256", "-128", "-129", "127", "128", "32767", "32768", "65535", "65536", "2147483647",
    "2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "18446744073709551615", "18446744073709551616", "1e400", "-1e400", "1.0", "1e2", "10E-1",
    "1.5", "-0", "-0.0", "-0e0", "1e20", "9007199254740993.0", "9007199254740993.00000000000000000001", "65519.99",
    "65520", "1e-400", "5e-324", "3.4028235677973366e38", "3.4028235677973362e38", "3.3961775292304601e38",
    "3.3961775292304597e38", "0.1", "123456789.123456789", "1.00390625", "1.00390626", "1.01171875",
    "1.0039062500000001", "1.0039062500000002", "0.00000000000000000000000001", "100000000000000000000000000000",
    "1e-5", "1E+05", "12345678901234567890123", "6.1e-5", "5.96e-8", "2.98e-8", "2.9802322387695313e-8",
]  # fmt: skip
ODD = [
    "null", "true", "false", '"NaN"', '"Infinity"', '"-Infinity"', '"nan"', r'"N\u0061N"', '""', '"a"', r'"\ud800"',
    r'"\udc00"', r'"\ud83d\ude00"', '"é😀"', r'"a\u0000b"', "{}", '{"a":1}', '{"a":1,"a":2}', "[]", "[1]", "NaN", "01",
    "+1", ".5", "1.", "-", "1e", "tru", r'"\x"', '"', r'{"\u0061":{},"a":[]}',
]  # fmt: skip
BYTES = b'{}[],:"\\/0123456789-+.eE truefalsn\t\n\x00\x80\xc3\xff'


class Requests:
    """Makes one body after the other; all choices come from the seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def often(self, chance: float) -> bool:
        return self.random.random() < chance

    def space(self) -> str:
        return self.random.choice(["", "", "", "", "", " ", "\n\t", "  ", "\r\n"])

    def scalar(self, dtype: str) -> str:
        choice = self.random.choice
        kind = DTYPES[dtype].kind if dtype in DTYPES else "int"
        if self.often(0.01):
            return choice(ODD)
        if self.often(0.01):
            return choice(NUMBERS)
        if kind == "bool":
            return choice(["true", "false"])
        if kind == "string" and self.often(0.03):
            return f'"{"x" * 50}"'
        if kind == "string":
            return choice(['"a"', '""', '"é😀"', r'"a\u0000b"', r'"\ud83d\ude00"', '"[,]"', r'"\"]"', r'"\\"'])
        if self.often(0.1):
            return choice(NUMBERS)
        if kind in ("int", "uint"):
            return str(self.random.randrange(choice([3, 128])))
        value = choice(
            [self.random.random(), self.random.gauss(0, 1), self.random.uniform(-1, 1) * 10 ** choice([-8, 8])]
        )
        return choice(
            [repr(value), str(int(value)), '"NaN"', '"Infinity"', '"-Infinity"', f"{value:.25f}", f"{value:e}"]
        )

    def item(self, dtype: str) -> str:
        if dtype in DTYPES and DTYPES[dtype].kind == "complex" and self.often(0.99):
            return f"[{self.space()}{self.scalar(dtype)},{self.scalar(dtype)}{self.space()}]"
        return self.scalar(dtype)

    def lists(self, dtype: str, shape: list[int]) -> str:
        if not shape:
            return self.item(dtype)
        count = shape[0] + (self.random.choice([-1, 1]) if self.often(0.01) else 0)
        between = f"{self.space()},{self.space()}"
        return f"[{self.space()}{between.join(self.lists(dtype, shape[1:]) for _ in range(count))}{self.space()}]"

    def packed(self, dtype: str, count: int) -> str:
        choice = self.random.choice
        if dtype == "string":
            texts = self.random.choices([b"a", b"", "é".encode(), b"\xff", b"y" * 41], [9, 9, 9, 0.3, 0.3], k=count)
            raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        else:
            size = count * (DTYPES[dtype].item_size if dtype in DTYPES else 1)
            raw = bytes(self.random.randrange(2 if dtype == "bool" and self.often(0.99) else 256) for _ in range(size))
        text = base64.b64encode(raw[:-1] if self.often(0.05) else raw).decode()
        if self.often(0.1):
            text = text.replace("/", "\\/")
        return text[:-1] + choice(["", "*", "="]) if self.often(0.03) else text

    def tensor(self) -> str:
        choice = self.random.choice
        dtype = choice(list(DTYPES)) if self.often(0.99) else choice(["float", "", "é", "\\ud800"])
        sizes = [0, 1, 2, 3, 5, 40] if self.often(0.3) else [1, 2, 3]
        shape = [choice(sizes) for _ in range(choice([0, 1, 1, 2, 2, 3]))]
        while prod(shape) > 100:
            shape.pop()
        members = [f'"dtype":"{dtype}"' if self.often(0.99) else '"dtype":5']
        given = list(map(str, shape))
        if self.often(0.03) and given:
            wrong = ["-1", "1.0", "1e2", str(10**30), "1.5", "null", '"a"', "true", "0"]
            given[self.random.randrange(len(given))] = choice(wrong)
        form = self.random.random()
        if form > 0.35 or self.often(0.3):
            members.append(f'"shape":{self.space()}[{", ".join(given)}]')
        if form < 0.8:
            values = self.lists(dtype, shape if form < 0.35 else [prod(shape)])
            if self.often(0.01):
                values = choice(ODD + NUMBERS)
            key = choice(['"values"'] * 20 + [r'"val\u0075es"', '"value"'])
            members.append(f"{key}{self.space()}:{self.space()}{values}")
        else:
            members.append(f'"base64":"{self.packed(dtype, prod(shape))}"')
        if self.often(0.01):
            members.append(choice(['"values":[1]', '"base64":""', '"x":{"y":[]}', '"dtype":"int8"']))
        return self.joined(members)

    def joined(self, members: list[str]) -> str:
        self.random.shuffle(members)
        return f"{{{self.space()}{f',{self.space()}'.join(members)}{self.space()}}}"

    def body(self) -> tuple[bytes, str]:
        """A body, and the operator that it is for."""
        choice = self.random.choice
        resident = [
            '{"tensor":"items"}',
            '{"tensor":"-x"}',
            '{"tensor":"a","dtype":"int8"}',
            '{"tensor":5}',
            "5",
            "null",
        ]
        members = ['"indices":' + self.tensor(), '"data":' + (self.tensor() if self.often(0.95) else choice(resident))]
        operator = "gathernd"
        if self.often(0.2):
            operator = choice(["gathernd", "gather"])
            name = "axis" if (operator == "gather") == self.often(0.95) else "batch_dims"
            integers = [
                "0",
                "1",
                "-1",
                "1.0",
                "1e2",
                "1" + "0" * 30,
                "1e400",
                "1e99999",
                "-0",
                "10e-1",
                str(2**64),
                "1.5",
            ]
            members.append(f'"{name}":{choice([*integers, "true", "null", json.dumps("1")])}')
        if self.often(0.1):
            members.append('"dialect":' + choice(['"onnx-13"', '"onnx-12"', '"x"', "null", r'"onnx-1\u0033"']))
        if self.often(0.1):
            members.append('"device":' + choice(['"auto"', '"cpu"', '"gpu"', '"tpu"', "5"]))
        if self.often(0.1):
            members.append('"output_encoding":' + choice(['"values"', '"base64"', '"x"', "[]"]))
        if self.often(0.02):
            members.append(
                choice(['"foo":1', '"data":{}', r'"\ud800":1', '"a/b~":{"values":[1]}', '"é":[{"values":1}]'])
            )
        body = f"{self.space()}{self.joined(members)}{self.space()}".encode()
        return (self.broken(body) if self.often(0.1) else body), operator

    def broken(self, body: bytes) -> bytes:
        """The body with a byte or two lost, added or changed, or a piece said twice, or its end lost."""
        text = bytearray(body)
        for _ in range(self.random.choice([1, 1, 2])):
            place, other = self.random.randrange(len(text) + 1), self.random.randrange(len(text) + 1)
            byte = bytes([self.random.choice(BYTES)])
            match self.random.randrange(5):
                case 0:
                    text[place : place + 1] = b""
                case 1:
                    text[place:place] = byte
                case 2:
                    text[place : place + 1] = byte
                case 3:
                    del text[place:]
                case _:
                    text[place:place] = text[other : other + self.random.randrange(12)]
        return bytes(text)
