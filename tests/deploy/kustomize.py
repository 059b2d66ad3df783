"""As much of kustomize as the manifests here use, so that they are rendered where there is no kubectl.

Anything else in a kustomization is an error. Where there is a kubectl, a test holds this to be what kustomize makes.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]
# Lists of mappings that a patch merges by this member, by the name of the list; other lists it replaces.
MERGED_BY = {
    "containers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}


class BadKustomization(Exception):
    """What a kustomization says cannot be done."""


def read(path: Path) -> list[Resource]:
    """The documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def render(folder: Path) -> list[Resource]:
    """The resources of the kustomization in `folder`. Raises BadKustomization."""
    return _apply(folder, [])


def _apply(folder: Path, resources: list[Resource]) -> list[Resource]:
    (config,) = read(folder / "kustomization.yaml")
    known = {"apiVersion", "kind", "resources", "components", "patches", "images"}
    if unknown := set(config) - known:
        raise BadKustomization(f"{folder}: {unknown}")
    if config["kind"] not in {"Kustomization", "Component"}:
        raise BadKustomization(f"{folder}: {config['kind']}")
    made = list(resources)
    for name in config.get("resources", ()):
        path = folder / name
        if not path.exists():
            raise BadKustomization(f"{folder}: there is no {name}")
        made += _apply(path, []) if path.is_dir() else read(path)
    for name in config.get("components", ()):
        made = _apply(folder / name, made)
    made = copy.deepcopy(made)
    for patch in config.get("patches", ()):
        _patch(made, patch)
    for image in config.get("images", ()):
        for resource in made:
            _set_image(resource, image)
    names = [(one["kind"], one["metadata"]["name"]) for one in made]
    if len(set(names)) < len(names):
        raise BadKustomization(f"{folder}: {names}")
    return made


def _patch(resources: list[Resource], patch: dict[str, Any]) -> None:
    target = patch["target"]
    change = yaml.safe_load(patch["patch"])
    for resource in resources:
        if resource["kind"] == target["kind"] and resource["metadata"]["name"] == target["name"]:
            merge(resource, change)


def merge(into: dict[str, Any], change: dict[str, Any]) -> None:
    """A strategic merge patch, in place."""
    for name, value in change.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        elif isinstance(value, list) and isinstance(into.get(name), list) and name in MERGED_BY:
            key = MERGED_BY[name]
            present = {item[key]: item for item in into[name]}
            for item in value:
                if item[key] in present:
                    merge(present[item[key]], item)
            # What is new stands in front.
            into[name] = [item for item in value if item[key] not in present] + into[name]
        else:
            into[name] = value


def _set_image(part: Any, image: dict[str, str]) -> None:
    if isinstance(part, list):
        for item in part:
            _set_image(item, image)
    elif isinstance(part, dict):
        for name, value in part.items():
            # kustomize looks into `containers` wherever they stand, as long as the members are strings.
            if name == "image" and isinstance(value, str) and value.split(":")[0] == image["name"]:
                part[name] = f"{image.get('newName', image['name'])}:{image['newTag']}"
            else:
                _set_image(value, image)
