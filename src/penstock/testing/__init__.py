"""Test servers, fakes and fault injection for Penstock's tests and for those of other packages."""
