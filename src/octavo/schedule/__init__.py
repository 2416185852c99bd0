"""Decides what each step computes: admission, chunking, preemption, the step plan. No tensors."""
