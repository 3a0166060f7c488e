"""Test kit for media, shipped with the package: the contract suite to inherit, and a simulator of power cuts."""
