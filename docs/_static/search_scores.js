// The title of a page counts more than the name of an attribute in the reference.
var Scorer = {
  // A lesson comes before the instructor's page about it, which has the same title.
  score: ([page, title, anchor, description, score]) => score + (page.startsWith("lessons/") ? 5 : 0),
  objNameMatch: 4,
  objPartialMatch: 1,
  objPrio: { 0: 2, 1: 0, 2: -1 },
  objPrioDefault: 0,
  title: 30,
  partialTitle: 10,
  term: 5,
  partialTerm: 2,
};
