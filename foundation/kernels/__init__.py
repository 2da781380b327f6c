"""GDPA, the one operator behind the personalised FFN, HSTU attention and pooling without softmax."""

from foundation.kernels.activations import ACTIVATIONS
from foundation.kernels.gdpa import gdpa
from foundation.kernels.reference import block_diagonal_ffn, gdpa_reference

__all__ = ["ACTIVATIONS", "block_diagonal_ffn", "gdpa", "gdpa_reference"]
