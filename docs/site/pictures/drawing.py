"""A picture as SVG: shapes and texts in a handful of styles, with a background of its own for light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias
from xml.sax.saxutils import escape

Style: TypeAlias = Literal["visible", "invisible", "good", "bad", "quiet"]
"""The meaning of a shape: a message that others can receive, one that they cannot, ..."""

Anchor: TypeAlias = Literal["start", "middle", "end"]

Kind: TypeAlias = Literal["", "quiet", "strong", "invisible", "good", "bad"]
"""The look of a part of a terminal's line."""

_COLOURS: Final = """
  .paper { fill: #ffffff; stroke: #d0d7de }
  text { fill: #1f2328; font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif }
  .heading { font-size: 16px; font-weight: 600 }
  .small { font-size: 12px; fill: #57606a }
  .on { fill: #ffffff }
  .visible { fill: #a96b05 } .invisible { fill: #2f6fbd } .good { fill: #2d8045 } .bad { fill: #c0392b }
  .quiet { fill: #6a737d }
  .code { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
  .code .strong { font-weight: 600 } .code .quiet { fill: #57606a }
  line, polyline { stroke: #8c959f; stroke-width: 1 }
  line.invisible, polyline.invisible { stroke: #2f6fbd; stroke-width: 2 }
  line.good, polyline.good { stroke: #2d8045; stroke-width: 2 }
  line.bad, polyline.bad { stroke: #c0392b; stroke-width: 2 }
  polyline.invisible, polyline.good, polyline.bad { fill: none }
  .dashed { stroke-dasharray: 4 4 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #161b22; stroke: #30363d }
    text { fill: #e6edf3 } .small { fill: #9da7b3 } .on { fill: #ffffff }
    line.invisible, polyline.invisible { stroke: #6ea8ef }
    line.good, polyline.good { stroke: #57c077 }
    .code .quiet { fill: #9da7b3 } .code .invisible { fill: #6ea8ef }
    .code .good { fill: #57c077 } .code .bad { fill: #ff7b6b }
    line.bad, polyline.bad { stroke: #ff7b6b }
  }
"""


@dataclass(slots=True)
class Drawing:
    """A picture that is drawn piece by piece.

    Args:
        width: In pixels.
        height: In pixels.
        title: Text for readers who cannot see it.
    """

    width: int
    height: int
    title: str
    _pieces: list[str] = field(default_factory=list)

    def bar(self, start: float, end: float, y: float, height: float, style: Style, label: str = "") -> None:
        """Draw a horizontal bar, with a label in it."""
        self._pieces.append(
            f'<rect class="{style}" x="{start:.1f}" y="{y:.1f}" '
            f'width="{end - start:.1f}" height="{height:.1f}" rx="3"/>'
        )
        if label:
            self.text((start + end) / 2, y + height / 2 + 5, label, anchor="middle", kind="on")

    def line(
        self, start: tuple[float, float], end: tuple[float, float], style: Style = "quiet", *, dashed: bool = False
    ) -> None:
        """Draw a straight line."""
        self._pieces.append(
            f'<line class="{style}{" dashed" if dashed else ""}" '
            f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"/>'
        )

    def path(self, points: list[tuple[float, float]], style: Style) -> None:
        """Draw a line through points."""
        shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._pieces.append(f'<polyline class="{style}" points="{shown}"/>')

    def dot(self, x: float, y: float, style: Style) -> None:
        """Draw a dot."""
        self._pieces.append(f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: Anchor = "start",
        kind: Literal["", "heading", "small", "on"] = "",
    ) -> None:
        """Write a line of text; ``y`` is its base line."""
        self._pieces.append(
            f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def code(self, x: float, y: float, parts: Sequence[tuple[str, Kind]]) -> None:
        """Write a line of a terminal, each part in its style; ``y`` is its base line."""
        shown = "".join(f'<tspan class="{kind}">{escape(text)}</tspan>' for text, kind in parts)
        self._pieces.append(f'<text class="code" xml:space="preserve" x="{x:.1f}" y="{y:.1f}">{shown}</text>')

    def svg(self) -> str:
        """The picture as a file."""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{_COLOURS}</style>",
                f'<rect class="paper" x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="8"/>',
                *self._pieces,
                "</svg>",
                "",
            ]
        )


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a value lies on a picture.

    Args:
        values: The lowest and the highest value.
        pixels: Where these two are drawn.
    """

    values: tuple[float, float]
    pixels: tuple[float, float]

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        share = (value - self.values[0]) / (self.values[1] - self.values[0])
        return self.pixels[0] + share * (self.pixels[1] - self.pixels[0])
