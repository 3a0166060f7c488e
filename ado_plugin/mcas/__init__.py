"""The service as an MCAS Active Data Object."""
