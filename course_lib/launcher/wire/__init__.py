"""What travels between the processes: the call, messages, values, progress; and the `Run` that is made of them."""
