"""Test kit for media, shipped with the package: a new medium inherits the suite every medium passes."""
