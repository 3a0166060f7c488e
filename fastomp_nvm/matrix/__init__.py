"""The only code that touches the big matrix: sweeps, gathers, standardisation, the certified tier."""
