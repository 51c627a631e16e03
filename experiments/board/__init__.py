"""The standard board, a budget of parameters an experiment."""
