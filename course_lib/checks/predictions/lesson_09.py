"""What to predict in lesson 09, real clusters."""

from __future__ import annotations

from course_lib.checks.predictions.prediction import Between, Choice, Prediction

PREDICTIONS = (
    Prediction(
        number="09.1",
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
        number="09.2",
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
        number="09.3",
        question="On 8 nodes it is best to save every 38 minutes. How often on 512 nodes, which lose a node 64 times "
        "as "
        "often?",
        choices=(
            Choice(
                "Every 38 minutes: a save costs what it costs",
                Between(30, 45),
                "Saving is about the save",
                "It is a trade: the more often the job dies, the more is lost between two saves.",
            ),
            Choice(
                "Every 5 minutes",
                Between(4, 6),
                why="The root of 64: what saving costs and what deaths cost are balanced.",
            ),
            Choice(
                "Every half minute: 64 times as often",
                Between(0.3, 1),
                "Twice the deaths, twice the saves",
                "At 30 s per save that would be all the time there is. The best interval goes with the *root* of the "
                "time "
                "between deaths.",
            ),
        ),
    ),
    Prediction(
        number="09.4",
        question="A parameter server, synchronous or asynchronous, with 1 worker or with 4. Which of the four are the "
        "same as one process?",
        choices=(
            Choice(
                "Only the two synchronous ones",
                [True, False, True, False],
                "Asynchronous is never exact",
                "With *one* worker nobody else changes the weights while it computes: its gradient is never stale.",
            ),
            Choice(
                "All but asynchronous with 4 workers",
                [True, True, True, False],
                why="It takes others to make a gradient stale.",
            ),
            Choice(
                "All four: every gradient is applied once",
                [True, True, True, True],
                "Order does not matter",
                "A gradient belongs to the weights that it was computed with. Applied to newer ones, it is another "
                "update.",
            ),
        ),
    ),
    Prediction(
        number="09.5",
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
    Prediction(
        number="09.6",
        question="8 workers send 400 MB of gradients to one server and fetch the weights. How many times as long as a "
        "ring all-reduce among the 8 does that take?",
        choices=(
            Choice(
                "As long: the same bytes are moved",
                Between(0.5, 1.5),
                "The same bytes, the same time",
                "Moved over *one* link. In a ring all eight links work at once.",
            ),
            Choice(
                "About 9 times",
                Between(8, 10),
                why="2n transfers over the server's link, against 2(n - 1)/n over each rank's.",
            ),
            Choice(
                "About 2 times: there and back",
                Between(1.5, 3),
                "The detour doubles the way",
                "The way is not the trouble. All eight use the server's one link, one after the other, both ways.",
            ),
            Choice(
                "About 64 times",
                Between(32, 100),
                "Everyone with everyone",
                "That would be the square. One server has n transfers each way, not n for each of n.",
            ),
        ),
    ),
)
