"""API keys, credentials and signatures."""
