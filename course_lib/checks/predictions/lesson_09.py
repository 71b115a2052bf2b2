"""What to predict in lesson 09, real clusters."""

from __future__ import annotations

from course_lib.checks.predictions.prediction import Between, Choice, Prediction

PREDICTIONS = (
    Prediction(
        number="09.1",
        question="An H100's NVLink is sold as 900 GB/s, and the network card beside it as 400 Gb/s. 8 GPUs sum the "
        "same 400 MB of gradients, once over NVLink, once over a card each. How many times as long do the cards take?",
        choices=(
            Choice(
                "About 2 times: 900 against 400",
                Between(1.5, 3),
                "A giga is a giga",
                "One is in bytes, the other in *bits*: 400 Gb/s are 50 GB/s.",
            ),
            Choice(
                "About 18 times: 900 against 50",
                Between(15, 21),
                "What is sold is what flows one way",
                "NVLink's 900 GB/s are both ways together, 450 each way. A card's 400 Gb/s are each way.",
            ),
            Choice("About 9 times", Between(8, 10), why="450 GB/s against 50: bytes, one way, for each GPU."),
        ),
    ),
    Prediction(
        number="09.2",
        question="Two ranks with two loader workers each. Every rank takes every other file; the `IterableDataset` "
        "knows "
        "nothing of workers. How often does a line come in one epoch?",
        typed=True,
        unit="times",
        tolerance=0.05,
        choices=(
            Choice("2", 2, why="Each worker runs the whole `__iter__`: a rank's files are read once per worker."),
            Choice(
                "1",
                1,
                "The loader shares out the work",
                "It does for a dataset with indices. An `IterableDataset` is *copied* into every worker, and each copy "
                "reads all of it.",
            ),
            Choice(
                "4",
                4,
                "Once for each worker of each rank",
                "The ranks do share the files. It is only the two workers of a rank that read the same ones.",
            ),
            Choice(
                "0.5",
                0.5,
                "Each reads a half of a half",
                "That would be by rank *and* worker, and then somebody reads the other half: once in all.",
            ),
        ),
    ),
    Prediction(
        number="09.3",
        question="A checkpoint every 10 updates. Rank 0 is killed at update 30, just before that update's checkpoint "
        "is "
        "written; `torchrun` starts all ranks again. From which update do they go on?",
        typed=True,
        choices=(
            Choice("20", 20, why="The last checkpoint that was written. Ten updates are done twice, and counted once."),
            Choice(
                "30",
                30,
                "It goes on where it died",
                "What was in memory is gone. Only what was *saved* survives, and 30 was not yet.",
            ),
            Choice(
                "29",
                29,
                "Only the last update is lost",
                "All updates since the last checkpoint are lost, and done again: 21 to 30.",
            ),
            Choice(
                "0",
                0,
                "A restart starts over",
                "`torchrun` starts the same command again, and that looks for a checkpoint first.",
            ),
        ),
    ),
    Prediction(
        number="09.4",
        question="On 256 GPUs it is best to save every 109 minutes. How often on 16,384, where something fails 64 "
        "times as often?",
        choices=(
            Choice(
                "Every 109 minutes: a save costs what it costs",
                Between(90, 130),
                "Saving is about the save",
                "It is a trade: the more often the job dies, the more is lost between two saves.",
            ),
            Choice(
                "Every 14 minutes",
                Between(12, 16),
                why="The root of 64: what saving costs and what failures cost are balanced.",
            ),
            Choice(
                "Every 2 minutes: 64 times as often",
                Between(1, 3),
                "Twice the failures, twice the saves",
                "At 30 s per save that would be a quarter of the time. The best interval goes with the *root* of the "
                "time between failures.",
            ),
        ),
    ),
    Prediction(
        number="09.5",
        question="Rank 2 computes for twice as long as ranks 0, 1 and 3, in every update. Which of them spend more "
        "time in the all-reduce than rank 2 does?",
        choices=(
            Choice(
                "None: the slow rank is slow there, too",
                [],
                "A slow rank has slow collectives",
                "It comes last, and finds everybody there: nobody is in the all-reduce for a shorter time.",
            ),
            Choice("All three", [0, 1, 3], why="They come early, and are in it until rank 2 comes."),
            Choice(
                "Ranks 1 and 3, its neighbours in the ring",
                [1, 3],
                "Only neighbours wait",
                "A piece goes all the way round: where one rank is missing, it stops for everybody.",
            ),
        ),
    ),
    Prediction(
        number="09.6",
        question="Four equally fast workers bring gradients whenever they are ready. How many updates old is a "
        "gradient, "
        "most of the time, when it arrives?",
        typed=True,
        unit="updates",
        choices=(
            Choice("3", 3, why="While one computes, each of the three others brings one."),
            Choice(
                "4",
                4,
                "One for each worker",
                "Its own does not count: while it computes, only the three *others* change the weights.",
            ),
            Choice(
                "0",
                0,
                "Equal workers do not get in each other's way",
                "They arrive one after another, and each arrival is an update that the others have not seen.",
            ),
            Choice(
                "1",
                1,
                "One behind",
                "One other worker would make it one. There are three.",
            ),
        ),
    ),
)
