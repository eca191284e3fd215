"""Everything that touches a network, a clock or a replica."""
