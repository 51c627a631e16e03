"""Dana, Pydi & Chevaleyre, Memorization in Attention-only Transformers (AISTATS 2025)."""

ORDER = (
    "heads",
    "head_dimension",
    "embedding_dimension",
    "slopes",
    "attention_vs_mlp",
    "smallest",
    "larger",
    "deeper",
    "distributions",
    "sequence_encoder",
    "contexts",
)
