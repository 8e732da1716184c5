"""Text to token ids and back: bytes, characters, byte-level BPE. Each tokenizer is a final class."""
