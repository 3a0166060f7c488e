"""Stores as directories of files: format, drafts, mappings, durable regions."""
