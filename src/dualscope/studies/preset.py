"""Presets: studies that come with the package, a YAML file each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dualscope.core.config_file import read_yaml
from dualscope.core.errors import InputError, suggest

PRESETS = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """The presets by name, ``quick`` (the default) first."""
    return sorted((path.stem for path in PRESETS.glob("*.yaml")), key=lambda name: (name != "quick", name))


def read_preset(name: str) -> dict[str, Any]:
    """A preset's fields, less its ``about`` line."""
    if name not in preset_names():
        raise InputError(f"unknown preset '{name}': {suggest(name, preset_names())}")
    fields, _ = read_yaml(PRESETS / f"{name}.yaml")
    fields.pop("about", None)
    return fields
