"""What a run would be on a TPU that is not here. `plan` asks, `worker` answers from a process of its own."""
