"""Where this server may connect to by itself: which addresses, decided when a connection is made
(docs/decisions/0034-connections-are-checked-when-made.md).
"""
