"""Goodness of fit, one family per file: linear, logistic, poisson."""
