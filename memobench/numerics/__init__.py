"""Arithmetic on arrays: measures of outputs, precision, forms by platform."""
