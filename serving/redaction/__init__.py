"""What is taken out of texts before they are kept, traced or logged: secrets always, personal data by policy."""
