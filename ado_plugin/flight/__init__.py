"""The service over Arrow Flight."""
