"""Reports, figures (`figure`) and tables (`tables`), made from the results table alone."""
