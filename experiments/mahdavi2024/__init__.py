"""Mahdavi, Liao & Thrampoulidis, Memorization Capacity of Multi-Head Attention (ICLR 2024)."""

ORDER = (
    "classification_heads",
    "classification_context",
    "classification_head_dimension",
    "regression_heads",
    "regression_context",
    "saturation",
    "theorem",
    "depth",
)
