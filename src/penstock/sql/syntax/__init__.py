"""The notation of options and values in SQL, derived from the option models of a kind of source."""
