"""Stores of features: the contracts that media implement, and how to open and build a store by URL."""
