"""Text in, text out: tokenizer, chat template, stop strings, the public service, the command."""
