"""From a request to a selection."""
