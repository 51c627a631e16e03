"""Garcia, Liu, Junkins, Eyuboglu, Rudra & Ré, MLPs are Hebbians (COLM 2026)."""

ORDER = ("widths",)
