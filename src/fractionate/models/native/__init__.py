"""A CPU kernel in C for Llama and Qwen2 models: `kernel.c`, its compiler and a stepper."""
