"""Selection algorithms, one generator per file, found by name in :mod:`fastomp_nvm.registry`."""
