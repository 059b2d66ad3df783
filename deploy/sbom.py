"""`make sbom`: the bill of materials of the image's Python packages, CycloneDX 1.6, from the lock.

From the lock and not from an installation, so that it says what any installation from this commit holds, on any
platform: packages, exact versions, the hashes of the files that may be installed, and where a package is for some
platforms only, for which. The same commit gives the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from pip_requirements_parser import InstallRequirement, RequirementsFile

from app import __version__


class BadLock(Exception):
    """A line of the lock that is not an exact version with hashes."""


def component(requirement: InstallRequirement) -> Component:
    """A locked package. Raises BadLock."""
    version = requirement.get_pinned_version
    hashes = [text for text in requirement.hash_options if text.startswith("sha256:")]
    if not version or not hashes:
        raise BadLock(f"{requirement.line}: not an exact version with SHA-256 hashes")
    purl = PackageURL("pypi", None, requirement.name, version)
    return Component(
        name=requirement.name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=purl.to_string(),
        external_references=[
            ExternalReference(
                type=ExternalReferenceType.DISTRIBUTION,
                url=XsUri(purl.to_string()),
                comment="the files that the lock allows",
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=text.rpartition(":")[2]) for text in hashes],
            )
        ],
        properties=[Property(name="gathernd:marker", value=str(requirement.marker))] if requirement.marker else [],
    )


def bill(locks: Sequence[Path]) -> Bom:
    """The bill of materials of the packages of these locks. Raises BadLock."""
    root = Component(
        name="gathernd-server",
        version=__version__,
        type=ComponentType.APPLICATION,
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
        purl=PackageURL("pypi", None, "gathernd-server", __version__),
        bom_ref="gathernd-server",
    )
    parts: dict[str, Component] = {}
    for lock in locks:
        parsed = RequirementsFile.from_file(str(lock))
        if parsed.invalid_lines or not parsed.requirements:
            raise BadLock(f"{lock}: {parsed.invalid_lines or 'no packages'}")
        for requirement in parsed.requirements:
            part = component(requirement)
            parts.setdefault(part.bom_ref.value or "", part)
    bom = Bom(components=parts.values(), serial_number=uuid5(NAMESPACE_URL, "\n".join([__version__, *sorted(parts)])))
    bom.metadata.component = root
    bom.metadata.timestamp = None  # type: ignore[assignment]
    bom.register_dependency(root, parts.values())
    return bom


def main(arguments: Sequence[str]) -> int:
    """`python -m deploy.sbom LOCK...` prints the bill; returns the exit code."""
    try:
        text = JsonV1Dot6(bill([Path(name) for name in arguments])).output_as_string(indent=1)
    except (BadLock, OSError) as error:
        sys.stderr.write(f"no bill of materials: {error}\n")
        return 1
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
