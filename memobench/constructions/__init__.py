"""Weights that proofs promise, made and checked; a theorem is a kind in a file of its own."""
