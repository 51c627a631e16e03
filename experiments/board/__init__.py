"""The standard board, one experiment for each budget of parameters."""
