"""The client that openapi-generator generates for Java: no warnings, compiled strictly, and at work.

The generator is openapi-generator.jar of requirements/clients.lock. Jackson's jars are Debian's. Only
jackson-datatype-jsr310 comes from within openapi-generator.jar, which is last on the class path.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import OPENAPI, PROGRAMS, got, run, shown_programs, tool
from tests.http.server import Server
from tests.markdown_blocks import check_output
from tests.needs import skip_without

pytestmark = pytest.mark.slow
_JARS = {
    "jackson-annotations": "libjackson2-annotations-java",
    "jackson-core": "libjackson2-core-java",
    "jackson-databind": "libjackson2-databind-java",
    "jakarta-annotation-api": "libjakarta-annotation-api-java",
}
_LIGHT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # runs of seconds: half the time
_PROPERTIES = (
    "library=native",
    "useJakartaEe=true",  # jakarta.annotation: Debian has no jar with all of the older javax.annotation
    "openApiNullable=false",  # no wrapper, which would ask for one more jar
    "containerDefaultToNull=true",  # a list that was not set is left out of the request, not sent empty
)
_WARNINGS = {
    # Of every OpenAPI 3.1 file.
    "OpenAPI 3.1 support is still in beta. To report an issue related to 3.1 spec, please kindly open an issue in the "
    "Github repo: https://github.com/openAPITools/openapi-generator.",
    # Of every 3.1 file that says of an object whether it may have additional properties; the code is right.
    "Failed to get the schema name: null",
    # Of every example of a body that is an object: its own page of documentation shows a generated one.
    "Ignoring complex example on request body",
}


def generator() -> Path:
    (found,) = tool("lib").glob("python3.*/site-packages/openapi_generator_cli/openapi-generator.jar")
    return found


@pytest.fixture(scope="module")
def class_path() -> str:
    """The jars that the client is compiled against and runs with."""
    skip_without(javac="default-jdk-headless")
    jars = []
    for name, package in _JARS.items():
        jar = Path("/usr/share/java") / f"{name}.jar"
        if not jar.exists():
            pytest.skip(f"needs the Debian package {package}")
        jars.append(jar)
    return os.pathsep.join(map(str, [*jars, generator()]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program beside the generated sources."""
    skip_without(java="default-jdk-headless")
    made = tmp_path_factory.mktemp("java")
    command: list[str | Path] = [
        "java",
        *_LIGHT,
        "-jar",
        generator(),
        "generate",
        "-g",
        "java",
        "-i",
        OPENAPI,
        "-o",
        "generated",
    ]
    said = run([*command, f"--additional-properties={','.join(_PROPERTIES)}"], made)
    warnings = re.findall(r"(?:WARN\w*|ERROR)\W+(?:[\w.]+ - )?(.+)", said)
    assert set(warnings) == _WARNINGS, said
    shutil.copy(PROGRAMS / "RoundTrip.java", made)
    return made


@pytest.fixture(scope="module")
def built(folder: Path, class_path: str) -> Path:
    """The program and the whole client, compiled with every warning an error."""
    sources = [str(path) for path in folder.glob("generated/src/main/java/**/*.java")]
    assert len(sources) > 40
    # The generator gives the serializers of a value of two types no serialVersionUID.
    options = ["-Xlint:all,-serial", "-Werror", "-proc:none", "-encoding", "UTF-8", "-d", "classes", "-cp", class_path]
    assert run(["javac", *(f"-J{flag}" for flag in _LIGHT), *options, "RoundTrip.java", *sources], folder) == ""
    return folder / "classes"


def test_round_trip(built: Path, class_path: str, server: Server, expected: dict[str, Any]) -> None:
    classes = os.pathsep.join([str(built), class_path])
    assert got(run(["java", *_LIGHT, "-cp", classes, "RoundTrip", server.url], built.parent)) == expected


def test_programs_of_the_documents_do_what_they_show(
    built: Path, class_path: str, server: Server, tmp_path: Path
) -> None:
    classes = os.pathsep.join([str(tmp_path), str(built), class_path])
    for program, output in shown_programs("java", server):
        name = re.search(r"class (\w+)", program)
        assert name is not None
        (tmp_path / f"{name[1]}.java").write_text(program)
        options = ["-Xlint:all", "-Werror", "-proc:none", "-d", str(tmp_path), "-cp", classes]
        assert run(["javac", *(f"-J{flag}" for flag in _LIGHT), *options, f"{name[1]}.java"], tmp_path) == ""
        check_output(output, run(["java", *_LIGHT, "-cp", classes, name[1]], tmp_path))
