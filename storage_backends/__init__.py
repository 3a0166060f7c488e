"""Media under the contracts of :mod:`fastomp_nvm.stores.contract`, one per file, and the way data gets into them.

Nothing is imported here: the registry reaches a medium by its URL scheme, and only what is used is loaded.
"""
