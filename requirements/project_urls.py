"""The addresses in the package's metadata, taken from where its release is made: a hook of hatchling's.

A CI job on GitHub says by its variables which repository it works on. So a release names the repository that published
it, and a fork's names the fork. A build anywhere else names none.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ProjectUrls(MetadataHookInterface):
    """Sets `urls`, which pyproject.toml leaves dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See hatchling's documentation of metadata hooks."""
        server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
        if not server or not repository:
            metadata["urls"] = {}
            return
        source = f"{server}/{repository}"
        files = f"{source}/blob/v{metadata['version']}"
        metadata["urls"] = {
            "Documentation": f"{files}/docs/index.md",
            "Changelog": f"{files}/CHANGELOG.md",
            "Issues": f"{source}/issues",
            "Source": source,
        }
