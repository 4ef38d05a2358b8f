"""The plugins for vLLM and SGLang."""
