"""Draws what `sqs-lease plan` found, by Matplotlib.

It makes PNG and SVG by itself, in one wheel on every platform; what draws charts for browsers (Plotly, Altair) takes a
browser's engine to make a PNG. It is imported only when somebody asks for a drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from sqs_lease.cli.forecast import Forecast
from sqs_lease.cli.output import CommandError

_SUFFIXES: Final = (".png", ".svg")
_UNITS: Final = ((7_200, 3_600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))
"""From how many seconds of work on the time is drawn in a unit, the unit's seconds, and its name."""


def check_file(file: Path) -> None:
    """Check that a drawing can be written, before it is computed.

    Raises:
        CommandError: It is not the name of a PNG or SVG file, its directory is missing, or Matplotlib is.
    """
    if file.suffix.lower() not in _SUFFIXES:
        raise CommandError(f"--plot takes a file that ends in {' or '.join(_SUFFIXES)}, not {str(file)!r}")
    if not file.parent.is_dir():
        raise CommandError(f"--plot: there is no directory {str(file.parent)!r}")
    try:
        import matplotlib as mpl  # noqa: F401
    except ModuleNotFoundError:
        raise CommandError(
            '--plot needs Matplotlib, which is not installed: pip install "sqs-lease[cli,plot]"'
        ) from None


def draw(
    file: Path, held: Mapping[str, Forecast], calls: Callable[[int], int], *, work_seconds: float, title: str
) -> None:
    """Draw the calls so far, and how long a crash would delay the messages, over the time of the work.

    Args:
        file: Where to; its suffix says whether it is a PNG or an SVG.
        held: The forecasts by the names of their policies.
        calls: Turns simulated calls into those of the whole batch.
        work_seconds: How long the work takes.
        title: The heading.

    Raises:
        CommandError: The file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A plain figure without pyplot, which would look for a display.
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    unit, name = next((unit, name) for least, unit, name in _UNITS if work_seconds >= least)
    for number, (policy, one) in enumerate(held.items()):
        curve = _calls_so_far(one, calls, work_seconds)
        above.step([at / unit for at, _ in curve], [so_far for _, so_far in curve], where="post", label=policy)
        curve = _waits(one, work_seconds)
        below.plot([at / unit for at, _ in curve], [wait for _, wait in curve], color=f"C{number}", linewidth=1)
    figure.suptitle(title)
    above.set_ylabel("API calls so far")
    above.yaxis.set_major_formatter("{x:,.0f}")
    below.set_ylabel("seconds until visible again")
    below.set_title("If everything that extends the messages dies at this moment", fontsize="medium")
    below.set_xlabel(f"{name} since the receive")
    below.set_xlim(0, work_seconds / unit)
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    above.legend(loc="upper left")
    try:
        figure.savefig(file, dpi=144)
    except OSError as error:
        raise CommandError(f"--plot: {str(file)!r} cannot be written: {error.strerror or error}") from error


def _calls_so_far(one: Forecast, calls: Callable[[int], int], work_seconds: float) -> list[tuple[float, float]]:
    points = [(0.0, calls(one.receives))]
    points += [(at, calls(one.receives + number)) for number, at in enumerate(one.extended_at, start=1)]
    return [*points, (work_seconds, calls(one.calls))]


def _waits(one: Forecast, work_seconds: float) -> list[tuple[float, float]]:
    """How long the first message stays invisible from each moment on: it falls, and jumps at each extension."""
    visible_at = float(one.policy.visibility_seconds)
    points = [(0.0, visible_at)]
    for renewal in one.renewals:
        points += [(renewal.at_seconds, renewal.left_seconds)]
        visible_at = renewal.visible_at_seconds
        points += [(renewal.at_seconds, visible_at - renewal.at_seconds)]
    end = min(visible_at, work_seconds)
    return [*points, (end, visible_at - end)]
