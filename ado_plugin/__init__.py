"""In-store execution: the operations of a pool server, and the hosts that carry them.

``operations`` says what can be asked of pools and is free of any transport; ``flight_server`` carries it over Arrow Flight. Nothing
is imported here: the registry reaches what is needed by name.
"""
