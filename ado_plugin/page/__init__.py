"""The live page of a pool server: what it holds, what it is doing, and what it found."""
