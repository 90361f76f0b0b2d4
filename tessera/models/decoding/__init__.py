"""Decoding with compiled layers: one program of fixed shapes for each kind of layer, kept between processes."""

from tessera.models.decoding.compiled import compile_decoding

__all__ = ["compile_decoding"]
