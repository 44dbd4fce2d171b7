"""Source kinds, the interfaces that they implement, and their options in SQL."""
