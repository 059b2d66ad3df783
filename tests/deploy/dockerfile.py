"""The Dockerfile as data: its stages, and what a stage has of those that it is built on."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from tests.http.server import ROOT

DOCKERFILE = ROOT / "Dockerfile"


@dataclass
class Stage:
    """A FROM and what follows it. `image` is that of the first stage below, `below` the names of the stages between."""

    image: str
    name: str
    below: list[str] = field(default_factory=list)
    steps: list[tuple[str, str]] = field(default_factory=list)

    def arguments(self, instruction: str) -> list[str]:
        return [text for word, text in self.steps if word == instruction]

    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for text in self.arguments("ENV") for pair in shlex.split(text))


def read_dockerfile() -> dict[str, Stage]:
    """The stages by name: comments dropped, continued lines joined, the steps of the stages below in front."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    timings: dict[str, Stage] = {}
    stage = Stage("", "")
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        word, _, text = line.strip().partition(" ")
        if word == "FROM":
            image, _, name = text.partition(" AS ")
            below = timings.get(image)
            if below is None:
                stage = Stage(image, name)
            else:
                stage = Stage(below.image, name, [*below.below, below.name], list(below.steps))
            timings[name] = stage
        else:
            stage.steps.append((word, " ".join(text.split()) if word != "HEALTHCHECK" else text.strip()))
    return timings
