"""Sessions that nobody uses any more: chosen, sealed, dumped, freed; and the folder of their dumps."""
