"""The runtime: which runs are missing, who works on them, and what is kept of them."""
