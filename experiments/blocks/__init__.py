"""The blocks and optimisers that people use: what each buys at equal parameters."""

ORDER = ("weights", "optimizers", "precision", "recall")
