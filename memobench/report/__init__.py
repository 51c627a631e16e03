"""Reports: figures and tables, made from the results table alone."""
