"""Teaching a conductor by reward, on the code that serves."""
