"""What tests, ours and yours, start or put in the place of the real thing."""
