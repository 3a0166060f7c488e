"""In-store execution: the operations of a pool server, and the hosts that carry them.

``service`` holds pools, uploads, jobs and operations, free of any transport; ``flight`` carries them over Arrow Flight; ``mcas``
runs the same selections inside an MCAS server. Nothing is imported here.
"""
