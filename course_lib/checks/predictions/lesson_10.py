"""What to predict in lesson 10, other frameworks."""

from __future__ import annotations

from course_lib.checks.predictions.prediction import Choice, Prediction

PREDICTIONS = (
    Prediction(
        number="10.1",
        question="A Keras LSTM has the weights of a PyTorch one, and the same outputs. Both make one update of plain "
        "gradient descent, with the same data, loss and rate. How many times as far has the bias moved in PyTorch (its "
        "two biases added up)?",
        typed=True,
        unit="times",
        tolerance=0.01,
        choices=(
            Choice("2", 2, why="Each of PyTorch's two biases has the whole gradient, and each takes a whole step."),
            Choice(
                "1",
                1,
                "The same function learns the same",
                "The same outputs and the same gradient for the *sum* of the biases. But PyTorch updates both terms of "
                "that sum.",
            ),
            Choice(
                "0.5",
                0.5,
                "Two biases share the gradient",
                "A derivative is not shared out among the terms of a sum: each has all of it.",
            ),
            Choice(
                "4",
                4,
                "Once for each gate",
                "Each gate has a part of the bias of its own, in both frameworks.",
            ),
        ),
    ),
    Prediction(
        number="10.2",
        question="`MirroredStrategy` on two devices. On each, the loss is the mean over its half of the batch. How "
        "many times as large as one process's is the update?",
        typed=True,
        unit="times",
        tolerance=0.01,
        choices=(
            Choice("2", 2, why="TensorFlow *sums* the replicas' gradients: two means of halves are twice the mean."),
            Choice(
                "1",
                1,
                "A framework averages",
                "DDP does. TensorFlow sums, and leaves the division to whoever writes the loss.",
            ),
            Choice(
                "0.5",
                0.5,
                "Half a batch, half a gradient",
                "A mean over half of the batch is as large as one over all of it. Two of them are summed.",
            ),
            Choice(
                "4",
                4,
                "It grows with the square",
                "Each mean is divided by half of the batch, that is all: twice too much, with two replicas.",
            ),
        ),
    ),
    Prediction(
        number="10.3",
        question="Sequences of 2 to 12 steps. Each one's loss is the mean over its own steps, and "
        "`compute_average_loss` divides the sum by the number of sequences in the global batch. How many times as much "
        "does a step of the shortest one weigh as a step of the longest?",
        typed=True,
        unit="times",
        tolerance=0.01,
        choices=(
            Choice("6", 6, why="Each sequence has one vote: its 2 steps share it, or its 12."),
            Choice(
                "1",
                1,
                "Divided by the global batch size, all is equal",
                "All *sequences* are. The steps of a short one share its vote among fewer.",
            ),
            Choice(
                "2",
                2,
                "Only the replicas matter",
                "That was the last section's mistake, and `compute_average_loss` mends it, on any number of replicas.",
            ),
            Choice(
                "36",
                36,
                "Twice uneven",
                "Its vote is the same as any other's: only the division by its own length differs.",
            ),
        ),
    ),
    Prediction(
        number="10.4",
        question="10 examples come from a generator, two workers train on them, and the policy is the default. How "
        "many examples do both generators make, together?",
        typed=True,
        unit="examples",
        choices=(
            Choice("20", 20, why="Each worker makes all of them, and throws the other's away."),
            Choice(
                "10",
                10,
                "Sharing the work shares the reading",
                "Each is *used* once. A generator cannot skip: each worker makes all, and drops what is not its own.",
            ),
            Choice(
                "5",
                5,
                "One worker's share",
                "Five is what a worker trains on. It makes all ten to find them.",
            ),
        ),
    ),
    Prediction(
        number="10.5",
        question="In `shard_map`, on 4 devices: the gradient of a device's own loss, with weights that are the same "
        "on all of them, then `psum` over the devices. How many times as large as one process's is it?",
        typed=True,
        unit="times",
        tolerance=0.01,
        choices=(
            Choice("4", 4, why="`grad` has summed already: the sum of four equal sums is four times one."),
            Choice(
                "1",
                1,
                "A gradient is local until somebody sums it",
                "So it is in PyTorch. In JAX, weights that all devices share have one gradient: `grad` itself sums it.",
            ),
            Choice(
                "16",
                16,
                "Summed forward and backward",
                "`psum` comes after `grad` here, and nobody differentiates it: it multiplies by 4, once.",
            ),
            Choice(
                "0.25",
                0.25,
                "psum averages",
                "`pmean` does. `psum` sums what is already the sum.",
            ),
        ),
    ),
)
