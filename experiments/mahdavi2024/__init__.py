"""Mahdavi, Liao & Thrampoulidis, Memorization Capacity of Multi-Head Attention (ICLR 2024)."""

ORDER = ("classification", "regression", "saturation", "theorem", "depth")
