"""Changes that the site of docs/ makes in its pages: MkDocs calls these functions for each page.

Pages are written to be read in the checkout, and docstrings to be read in an editor. So links that leave docs/ become
plain paths, because readers of the site do not have those files beside it; and the roles of docstrings become links.
"""

from __future__ import annotations

import re
from typing import Any, Final

OUTSIDE: Final = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#]+)(?:#[^)]*)?\)")
"""A link to a file of the checkout that is not a page."""

ROLE: Final = re.compile(r":(?:attr|class|data|func|meth|mod):<code>(?:([^<&]*?) &lt;)?([\w.~]+)(?:&gt;)?</code>")
"""A role of reStructuredText, as Markdown leaves it: with a text of its own, or only what it refers to."""

LITERAL_BLOCK: Final = re.compile(r"(?:<p>::|:(:))</p>(?=\s*<(?:pre|div class=\"(?:language-\w+ )?highlight))")
"""The end of a paragraph ahead of a literal block: a second colon, or nothing but both."""

IDENTIFIER: Final = re.compile(r' id="(sqs_lease[\w.]*)"')


LOADED: Final = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b[^>]*\bhref=["']?(?:https?:)?//"""
)
"""Markup that makes a browser load something from a server."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links that leave docs/ by the paths of the files."""
    return markdown if page.file.src_uri.startswith("reference/") else OUTSIDE.sub(_path, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Make links of roles, and drop the colons that reStructuredText has ahead of literal blocks."""
    identifiers = IDENTIFIER.findall(html)

    def reference(role: re.Match[str]) -> str:
        text, target = role.groups()
        parts = target.lstrip("~.").split(".")
        # Docstrings name things as their own module sees them: by the end of the whole name.
        ends = [".".join(parts[start:]) for start in range(len(parts))]
        found = (name for end in ends for name in identifiers if name == end or name.endswith(f".{end}"))
        shown = text or ".".join(parts[1:] if parts[0] == "sqs_lease" else parts)
        return f'<autoref identifier="{next(found, ends[0])}" optional><code>{shown}</code></autoref>'

    return LITERAL_BLOCK.sub(lambda end: ":</p>" if end.group(1) else "", ROLE.sub(reference, html))


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Let the build fail where a page would load something from elsewhere.

    Raises:
        ValueError: It would.
    """
    if found := LOADED.search(output):
        raise ValueError(f"{page.file.src_uri} loads something from elsewhere: {output[found.start() :][:120]}")
    return output


def _path(link: re.Match[str]) -> str:
    text, path = link.groups()
    path = path.rstrip("/")
    return f"`{path}`" if text.strip("`/") == path else f"{text} (`{path}` in the repository)"
