"""Language models: loading, prompts, vocabularies, hidden states and decoding steps."""
