"""Between text and token ids: tokenizer, detokenizer, stop strings, chat templates."""
