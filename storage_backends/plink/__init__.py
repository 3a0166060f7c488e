"""Genotypes of PLINK, used where they lie: ``.bed`` with its ``.bim`` and ``.fam``."""
