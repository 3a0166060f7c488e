"""The selection service, free of any transport."""
