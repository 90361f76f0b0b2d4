"""Learned tables of absolute positions: a model that has one reads no further than its last row."""

from torch import nn


def position_tables(model: nn.Module) -> dict[str, nn.Embedding]:
    """The learned tables of positions of `model`, by name."""
    names = ("wpe", "embed_positions", "position_embeddings", "positions_embed")
    modules = model.named_modules()
    return {name: m for name, m in modules if isinstance(m, nn.Embedding) and name.rpartition(".")[2] in names}


def learned_positions(model: nn.Module) -> int | None:
    """How many positions `model` has learned; None: no limit, or none of its own."""
    rows = [table.num_embeddings - _unused_rows(table) for table in position_tables(model).values()]
    return min(rows) if rows else None


def first_position(model: nn.Module) -> int:
    """What `position_ids` call the first position: 0, or in RoBERTa the row behind that of padding."""
    tables = [table for table in position_tables(model).values() if not getattr(table, "offset", 0)]
    return max((_unused_rows(table) for table in tables), default=0)


def _unused_rows(table: nn.Embedding) -> int:
    """Rows before the first position: `offset` in OPT and BART, up to the row of padding in RoBERTa."""
    if isinstance(offset := getattr(table, "offset", 0), int) and offset:
        return offset
    return 0 if table.padding_idx is None else table.padding_idx + 1
