"""Constructed weights: what theorems promise, what the weights hold, and training beside them."""

ORDER = ("promised", "load", "trained")
