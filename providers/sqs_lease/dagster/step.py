"""The step that a context belongs to: its key, and metadata for what it makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import dagster as dg

Context: TypeAlias = dg.AssetExecutionContext | dg.OpExecutionContext


def step_key(context: Context) -> str | None:
    """The key of the step under way; None where the function is called directly, as in a test."""
    try:
        return context.op_execution_context.get_step_execution_context().step.key
    except (AttributeError, dg.DagsterError):
        return None


def add_metadata(context: Context, metadata: Mapping[str, dg.MetadataValue]) -> None:
    """Add metadata to the materializations of the step's assets, or to the output of an op that has just one.

    Args:
        context: The context of the asset or op; where the function is called directly, nothing is done.
        metadata: By key; what was added before stays.
    """
    if step_key(context) is None:
        return
    if isinstance(context, dg.AssetExecutionContext):
        for key in context.selected_asset_keys:
            context.add_asset_metadata(metadata, asset_key=key)
    elif len(context.op_def.output_defs) == 1 and not context.op_def.output_defs[0].is_dynamic:
        context.add_output_metadata(metadata)
